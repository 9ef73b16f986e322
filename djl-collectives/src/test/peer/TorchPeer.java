
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.Map;
import org.bytedeco.javacpp.SizeTPointer;
import org.bytedeco.javacpp.chrono.Milliseconds;
import org.bytedeco.pytorch.ByteVector;
import org.bytedeco.pytorch.Store;
import org.bytedeco.pytorch.StringVector;
import org.bytedeco.pytorch.TCPStore;
import org.bytedeco.pytorch.TCPStoreOptions;

/**
 * PyTorch's own TCPStore, driven through a pipe: a JVM of its own, because its libtorch is not
 * DJL's. Each line of standard input is a command, answered by one line: {@code ok}, perhaps with a
 * result, or {@code error} with a message. Keys and values are in hexadecimal, {@code -} if empty.
 *
 * <pre>
 * open NAME PORT ROLE WORKERS TIMEOUT   a store; ROLE is client, libuv or plain; answer: the port
 * close NAME
 * set|append NAME KEY VALUE,  get|delete NAME KEY,  add NAME KEY N,
 * compareSet NAME KEY EXPECTED DESIRED,  check|wait NAME KEY...,  numKeys NAME,
 * queuePush NAME KEY VALUE,  queuePop NAME KEY BLOCK,  queueLen NAME KEY,  listKeys NAME,
 * clone NAME NEW-NAME
 * </pre>
 *
 * <p>It is run from source, with the peer's jars as class path.
 */
public final class TorchPeer {

    private static final HexFormat HEX = HexFormat.of();

    private final Map<String, Store> stores = new HashMap<>();

    private TorchPeer() {}

    public static void main(String[] args) throws IOException {
        // What the library prints must not get between the answers.
        PrintStream answers = System.out;
        System.setOut(System.err);
        TorchPeer peer = new TorchPeer();
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            answers.println(peer.answer(line.split(" ")));
            answers.flush();
        }
    }

    private String answer(String[] words) {
        try {
            return ("ok " + execute(words)).strip();
        } catch (RuntimeException e) {
            return "error " + String.valueOf(e.getMessage()).replaceAll("\\s+", " ");
        }
    }

    private String execute(String[] words) {
        if (words[0].equals("open")) {
            return open(words);
        }
        Store store = stores.get(words[1]);
        switch (words[0]) {
            case "close" -> stores.remove(words[1]).close();
            case "set" -> store.set(key(words[2]), value(words[3]));
            case "append" -> store.append(key(words[2]), value(words[3]));
            case "wait" -> store._wait(keys(words));
            case "get" -> {
                return hex(store.get(key(words[2])));
            }
            case "add" -> {
                return Long.toString(store.add(key(words[2]), Long.parseLong(words[3])));
            }
            case "compareSet" -> {
                return hex(store.compareSet(key(words[2]), value(words[3]), value(words[4])));
            }
            case "check" -> {
                return Boolean.toString(store.check(keys(words)));
            }
            case "delete" -> {
                return Boolean.toString(store.deleteKey(key(words[2])));
            }
            case "numKeys" -> {
                return Long.toString(store.getNumKeys());
            }
            case "queueLen" -> {
                return Long.toString(store.queueLen(key(words[2])));
            }
            case "queuePush" -> store.queuePush(key(words[2]), value(words[3]));
            case "queuePop" -> {
                return hex(store.queuePop(key(words[2]), Boolean.parseBoolean(words[3])));
            }
            case "listKeys" -> {
                StringVector keys = store.listKeys();
                StringBuilder list = new StringBuilder();
                for (long i = 0; i < keys.size(); i++) {
                    list.append(HEX.formatHex(keys.get(i).getStringBytes())).append(' ');
                }
                return list.toString();
            }
            case "clone" -> stores.put(words[2], store.clone());
            default -> throw new IllegalArgumentException("No command " + words[0]);
        }
        return "";
    }

    private String open(String[] words) {
        TCPStoreOptions options = new TCPStoreOptions();
        options.port((short) Integer.parseInt(words[2]));
        options.isServer(!words[3].equals("client"));
        options.useLibUV(!words[3].equals("plain"));
        int workers = Integer.parseInt(words[4]);
        if (workers > 0) {
            options.numWorkers(new SizeTPointer(1).put(workers));
        }
        options.waitWorkers(workers > 0);
        options.timeout(new Milliseconds(Long.parseLong(words[5])));
        TCPStore store = new TCPStore("127.0.0.1", options);
        stores.put(words[1], store);
        return Integer.toString(Short.toUnsignedInt(store.getPort()));
    }

    private static byte[] bytes(String word) {
        return word.equals("-") ? new byte[0] : HEX.parseHex(word);
    }

    private static String key(String word) {
        return new String(bytes(word), StandardCharsets.UTF_8);
    }

    private static StringVector keys(String[] words) {
        return new StringVector(
                Arrays.stream(words).skip(2).map(TorchPeer::key).toArray(String[]::new));
    }

    private static ByteVector value(String word) {
        return new ByteVector(bytes(word));
    }

    private static String hex(ByteVector value) {
        return value.size() == 0 ? "-" : HEX.formatHex(value.get());
    }
}
