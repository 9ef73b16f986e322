// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.spi;

import java.time.Duration;
import org.djlx.collectives.DebugLevel;
import org.djlx.nativeops.host.Durations;
import org.djlx.nativeops.host.Required;

/**
 * Options that all backends have. A backend may define a subclass with more options, built by a
 * subclass of {@link Builder}.
 */
public class BackendOptions {

    /** The default timeout: 30 minutes, as in c10d. */
    public static final Duration DEFAULT_TIMEOUT = Duration.ofMinutes(30);

    /** The default time after which the log warns of a wait: 60 s. */
    public static final Duration DEFAULT_WARN_AFTER = Duration.ofSeconds(60);

    // 73 years; twice this in nanoseconds still fits a long.
    private static final Duration LONGEST_TIMEOUT = Duration.ofNanos(Long.MAX_VALUE / 4);

    /** The options if none are given. */
    public static final BackendOptions DEFAULTS = new BackendOptions(DEFAULT_TIMEOUT);

    private final Duration timeout;
    private final Duration warnAfter;
    private final DebugLevel debug; // null: that of the environment

    /**
     * Creates options with {@link #DEFAULT_WARN_AFTER}. With {@code shm} and {@code mpi} a
     * collective's timeout counts from its start, which is after the end of the operations before
     * it; a message's timeout counts from the call.
     *
     * @param timeout how long an operation waits for the other ranks; positive, capped at 73 years
     */
    public BackendOptions(Duration timeout) {
        this(timeout, DEFAULT_WARN_AFTER);
    }

    /** Creates options; for the time after which the log warns see {@link #warnAfter}. */
    public BackendOptions(Duration timeout, Duration warnAfter) {
        this(timeout, warnAfter, null);
    }

    private BackendOptions(Duration timeout, Duration warnAfter, DebugLevel debug) {
        this.timeout = checked(timeout, "timeout");
        this.warnAfter = checked(warnAfter, "warnAfter time");
        this.debug = debug;
    }

    /** Creates options from a builder, and from defaults where it sets nothing. */
    protected BackendOptions(Builder<?> builder, BackendOptions defaults) {
        this(
                builder.timeout == null ? defaults.timeout : builder.timeout,
                builder.warnAfter == null ? defaults.warnAfter : builder.warnAfter,
                builder.debug == null ? defaults.debug : builder.debug);
    }

    /** Checks a timeout. */
    public static Duration checked(Duration timeout) {
        return checked(timeout, "timeout");
    }

    private static Duration checked(Duration timeout, String what) {
        if (timeout == null) {
            throw new IllegalArgumentException("the " + what + " is null");
        }
        if (timeout.isNegative() || timeout.isZero()) {
            throw new IllegalArgumentException(
                    "the " + what + " must be positive, but is " + Durations.text(timeout));
        }
        return timeout.compareTo(LONGEST_TIMEOUT) < 0 ? timeout : LONGEST_TIMEOUT;
    }

    /** {@return how long an operation waits for the other ranks} */
    public Duration timeout() {
        return timeout;
    }

    /**
     * {@return after how long the log warns of an operation that still waits for other ranks} The
     * warning appears once per operation and names the missing ranks if they are known. Creating a
     * group counts as an operation. A time longer than the timeout disables the warning.
     */
    public Duration warnAfter() {
        return warnAfter;
    }

    /**
     * {@return how closely the group watches its calls}
     *
     * @throws IllegalArgumentException if the level is not set, and the environment variable
     *     {@value DebugLevel#VARIABLE} is not a level
     */
    public DebugLevel debug() {
        return debug == null ? DebugLevel.of(System.getenv()) : debug;
    }

    /**
     * Builds options. Options keep a {@link #copy} of their builder instead of its values, so that
     * options made from other options have all of their values.
     */
    public abstract static class Builder<B extends Builder<B>> implements Cloneable {

        private Duration timeout; // null: the default
        private Duration warnAfter; // null: the default
        private DebugLevel debug; // null: the default

        /** Creates a builder with the defaults. */
        protected Builder() {}

        /** Sets how long an operation waits for the other ranks; 30 minutes unless set. */
        public B optTimeout(Duration timeout) {
            this.timeout = Required.argument("optTimeout: timeout", timeout);
            return self();
        }

        /**
         * Sets after how long the log warns of an operation that still waits for other ranks; 60 s
         * unless set.
         */
        public B optWarnAfter(Duration warnAfter) {
            this.warnAfter = Required.argument("optWarnAfter: warnAfter", warnAfter);
            return self();
        }

        /**
         * Sets how closely the group watches its calls, the same on all ranks; unless set, the
         * level of the environment variable {@value DebugLevel#VARIABLE}.
         */
        public B optDebug(DebugLevel level) {
            this.debug = Required.argument("optDebug: level", level);
            return self();
        }

        /** Sets the options that all backends have to those of other options. */
        public B optCommon(BackendOptions options) {
            Required.argument("optCommon: options", options);
            debug = options.debug();
            return optTimeout(options.timeout).optWarnAfter(options.warnAfter);
        }

        /** {@return a copy of this builder} */
        @SuppressWarnings("unchecked")
        public B copy() {
            try {
                return (B) clone();
            } catch (CloneNotSupportedException e) {
                throw new AssertionError(e);
            }
        }

        @SuppressWarnings("unchecked")
        private B self() {
            return (B) this;
        }
    }
}
