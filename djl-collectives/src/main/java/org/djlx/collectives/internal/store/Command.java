// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.store;

/**
 * The commands of PyTorch's TCPStore protocol, in the order of their codes.
 *
 * <p>Integers are little-endian. Keys and values are preceded by their length as an unsigned 64-bit
 * integer, lists by the number of their elements. A user's key {@code k} is sent as {@code /k}.
 *
 * <pre>
 * command            fields                        answer
 * 0  VALIDATE        u32 0x3C85F7CE                none; the first command of a connection
 * 1  SET             key, value                    none
 * 2  COMPARE_SET     key, expected, desired        value
 * 3  GET             key                           value; empty if unset
 * 4  ADD             key, i64                      i64
 * 5  CHECK           keys                          u8: 0 all set, 1 not
 * 6  WAIT            keys                          u8 0, once all are set
 * 7  GETNUMKEYS                                    i64
 * 8  DELETE_KEY      key                           i64: keys deleted
 * 9  APPEND          key, value                    none
 * 10 MULTI_GET       keys                          values
 * 11 MULTI_SET       list of key and value         none
 * 12 CANCEL_WAIT                                   u8 1
 * 13 PING            u32                           u32, the same
 * 14 QUEUE_PUSH      queue, value                  none
 * 15 QUEUE_POP       queue                         i64: values before the call; value, unless 0
 * 16 QUEUE_LEN       queue                         i64
 * 17 LIST_KEYS                                     keys
 * </pre>
 *
 * <p>WAIT and CHECK take a queue with values for a key that is set. A pushed value ends one WAIT,
 * as PyTorch's client, which then sends QUEUE_POP, fails if another one was faster.
 *
 * <p>Source: PyTorch's torch/csrc/distributed/c10d/TCPStoreBackend.hpp and
 * TCPStoreLibUvBackend.cpp, and the bytes of its client and servers of 2.10. Queues came with 2.8,
 * LIST_KEYS with 2.10; its server without libuv has no queues.
 */
public enum Command {
    VALIDATE(Field.U32),
    SET(Field.KEY, Field.VALUE),
    COMPARE_SET(Field.KEY, Field.VALUE, Field.VALUE),
    GET(Field.KEY),
    ADD(Field.KEY, Field.I64),
    CHECK(Field.KEYS),
    WAIT(Field.KEYS),
    GETNUMKEYS,
    DELETE_KEY(Field.KEY),
    APPEND(Field.KEY, Field.VALUE),
    MULTI_GET(Field.KEYS),
    MULTI_SET(Field.PAIRS),
    CANCEL_WAIT,
    PING(Field.U32),
    QUEUE_PUSH(Field.KEY, Field.VALUE),
    QUEUE_POP(Field.KEY),
    QUEUE_LEN(Field.KEY),
    LIST_KEYS;

    static final int MAGIC = 0x3C85F7CE;

    /** The counter of workers that have joined; without a slash, so not a user's key. */
    static final String INIT_KEY = "init/";

    static final String KEY_PREFIX = "/";

    /** The answer to {@link #CHECK} if all keys are set. */
    static final int READY = 0;

    /** The answer to {@link #CHECK} if a key is unset. */
    static final int NOT_READY = 1;

    /** The answer to {@link #WAIT}. */
    static final int STOP_WAITING = 0;

    /** The answer to {@link #CANCEL_WAIT}. */
    static final int WAIT_CANCELED = 1;

    private static final Command[] ALL = values();

    private final Field[] fields;

    Command(Field... fields) {
        this.fields = fields;
    }

    /** Returns whether the command has no answer. */
    boolean isConfirmedByPing() {
        return this == SET || this == APPEND || this == MULTI_SET || this == QUEUE_PUSH;
    }

    int code() {
        return ordinal();
    }

    int numFields() {
        return fields.length;
    }

    Field field(int index) {
        return fields[index];
    }

    /** Returns the command of a code, or null if there is none. */
    static Command of(int code) {
        return code < ALL.length ? ALL[code] : null;
    }

    /** The fields of a command. */
    enum Field {
        U32,
        I64,
        KEY,
        VALUE,
        KEYS,
        PAIRS
    }
}
