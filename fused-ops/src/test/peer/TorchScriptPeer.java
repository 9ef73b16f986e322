
import com.sun.jna.NativeLibrary;
import com.sun.jna.ptr.PointerByReference;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.zip.ZipEntry;
import java.util.zip.ZipFile;
import java.util.zip.ZipOutputStream;
import org.bytedeco.javacpp.FloatPointer;
import org.bytedeco.javacpp.Loader;
import org.bytedeco.pytorch.JitModule;
import org.bytedeco.pytorch.QualifiedName;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;

/**
 * Writes a model in TorchScript for each of 1, 2 and 4 ranks, by PyTorch's own compiler, as {@code
 * N/model_rank{r}.pt}: an MLP that is divided among the ranks, twice, and methods that each call
 * one operator. Run from source, with the jars of PyTorch's presets and JNA as class path:
 *
 * <pre>
 * java -cp 'djl-collectives/target/peer/*:JNA.jar' fused-ops/src/test/peer/TorchScriptPeer.java DIR
 * </pre>
 */
public final class TorchScriptPeer {

    // PyTorch compiles calls of what it has a schema of.
    private static final List<String> SCHEMAS =
            List.of(
                    "all_reduce(Tensor input, *, int reduce_op=0) -> Tensor",
                    "all_gather_matmul(Tensor A_shard, Tensor B, int gather_dim) -> Tensor",
                    "matmul_reduce_scatter(Tensor A, Tensor B, int scatter_dim, *,"
                            + " int reduce_op=0) -> Tensor");

    // Sizes of the undivided MLP.
    private static final int IN = 8;
    private static final int HIDDEN = 16;
    private static final int OUT = 4;

    private static final String SOURCE =
            """
              def forward(self, x: Tensor) -> Tuple[Tensor, Tensor]:
                rows = torch.floordiv(torch.size(x, 0), WORLD)
                shard = torch.narrow(x, 0, RANK * rows, rows)
                h = torch.relu(ops.cuda_p2p.all_gather_matmul(shard, self.w1, 0))
                y = ops.cuda_p2p.matmul_reduce_scatter(h, self.w2, 0)
                by_rows = ops.cuda_p2p.all_gather_matmul(y, self.head, gather_dim=0)
                partial = torch.mm(torch.relu(torch.mm(x, self.w1)), self.w2)
                return by_rows, torch.mm(ops.cuda_p2p.all_reduce(partial), self.head)

              def reduce(self, x: Tensor, op: Tensor) -> Tensor:
                return ops.cuda_p2p.all_reduce(x + RANK, reduce_op=int(op))

              def gather_columns(self, a: Tensor, b: Tensor) -> Tensor:
                return ops.cuda_p2p.all_gather_matmul(a + RANK, b, -1)

              def scatter_columns(self, a: Tensor, b: Tensor) -> Tensor:
                return ops.cuda_p2p.matmul_reduce_scatter(a + RANK, b, 1, reduce_op=1)

              def fail_alone(self, x: Tensor) -> Tensor:
                assert RANK < WORLD - 1, "the last rank fails alone"
                return ops.cuda_p2p.all_reduce(x)

              def fail_afterwards(self, x: Tensor) -> Tensor:
                y = ops.cuda_p2p.all_reduce(x)
                assert RANK < WORLD - 1 or bool(torch.lt(torch.sum(y), 0)), "the last rank fails afterwards"
                return y

              def differ(self, x: Tensor) -> Tensor:
                return ops.cuda_p2p.all_reduce(torch.narrow(x, 0, 0, torch.size(x, 0) - RANK))

              def multiply(self, a: Tensor, b: Tensor) -> Tensor:
                return torch.mm(ops.cuda_p2p.all_gather_matmul(a, b, 0), self.w1)
            """;

    private TorchScriptPeer() {}

    public static void main(String[] args) throws IOException {
        Loader.load(torch.class);
        define();
        for (int worldSize : new int[] {1, 2, 4}) {
            Path directory = Path.of(args[0], Integer.toString(worldSize));
            Files.createDirectories(directory);
            for (int rank = 0; rank < worldSize; rank++) {
                save(directory.resolve("model_rank" + rank + ".pt"), rank, worldSize);
            }
        }
    }

    /** Tells libtorch of the operators, without kernels, by its stable C interface. */
    private static void define() throws IOException {
        String libtorch =
                Files.readAllLines(Path.of("/proc/self/maps")).stream()
                        .filter(line -> line.endsWith("/libtorch_cpu.so"))
                        .findFirst()
                        .map(line -> line.substring(line.indexOf('/')))
                        .orElseThrow();
        NativeLibrary library = NativeLibrary.getInstance(libtorch);
        PointerByReference fragment = new PointerByReference();
        check(
                library.getFunction("aoti_torch_library_init_fragment")
                        .invokeInt(new Object[] {"cuda_p2p", "TorchScriptPeer", 0, fragment}));
        for (String schema : SCHEMAS) {
            check(
                    library.getFunction("aoti_torch_library_def")
                            .invokeInt(new Object[] {fragment.getValue(), schema}));
        }
    }

    private static void check(int status) {
        if (status != 0) {
            throw new IllegalStateException("libtorch has said why");
        }
    }

    private static void save(Path file, int rank, int worldSize)
            throws IOException {
        JitModule module = new JitModule(new QualifiedName("__torch__.Mlp"));
        int hidden = HIDDEN / worldSize;
        module.register_parameter("w1", matrix(1, IN, HIDDEN, 0, rank * hidden, IN, hidden), false);
        module.register_parameter(
                "w2", matrix(2, HIDDEN, IN, rank * hidden, 0, hidden, IN), false);
        module.register_parameter("head", matrix(3, IN, OUT, 0, 0, IN, OUT), false);
        String source =
                SOURCE.replace("RANK", Integer.toString(rank))
                        .replace("WORLD", Integer.toString(worldSize));
        // The presets' compiler knows of no operators like these, but what reads files does.
        Path parameters = Files.createTempFile("parameters", ".pt");
        module.save(parameters.toString());
        Path text = Files.createTempFile("text", ".pt");
        add(source, parameters, text);
        torch.load(text.toString()).save(file.toString());
        Files.delete(parameters);
        Files.delete(text);
    }

    /** Adds methods to the class that a file holds as text. */
    private static void add(String methods, Path from, Path to) throws IOException {
        try (ZipFile in = new ZipFile(from.toFile());
                ZipOutputStream out = new ZipOutputStream(Files.newOutputStream(to))) {
            for (ZipEntry entry : in.stream().toList()) {
                out.putNextEntry(new ZipEntry(entry.getName()));
                in.getInputStream(entry).transferTo(out);
                if (entry.getName().endsWith("/code/__torch__.py")) {
                    out.write(methods.getBytes(StandardCharsets.UTF_8));
                }
                out.closeEntry();
            }
        }
    }

    /** Part of a matrix whose elements a test computes by the same formula. */
    private static Tensor matrix(
            int number, int rows, int columns, int row, int column, int height, int width) {
        float[] values = new float[height * width];
        for (int i = 0; i < height; i++) {
            for (int j = 0; j < width; j++) {
                int index = (row + i) * columns + column + j;
                values[i * width + j] = (float) Math.sin(number + index);
            }
        }
        Tensor tensor = torch.from_blob(new FloatPointer(values), height, width).clone();
        tensor.set_requires_grad(true);
        return tensor;
    }
}
