// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.topology;

import ai.djl.Device;
import java.io.PrintWriter;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import org.djlx.collectives.launch.cli.CliCommand;
import org.djlx.collectives.launch.cli.Gpus;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.GpuTopology;
import picocli.CommandLine.Command;

/** {@code topology}: prints the links between the GPUs of this host. */
@Command(
        name = "topology",
        description = {
            "Prints how the GPUs that this process can use are linked, as nvidia-smi shows it, and"
                    + " the kind of topology by which all-reduce chooses its algorithm."
        })
public final class TopologyCommand extends CliCommand {

    @Override
    public Integer call() {
        Gpus.require(1);
        List<CudaDevice> devices = new ArrayList<>();
        try {
            for (int i = 0; i < CudaDevice.count(); i++) {
                devices.add(CudaDevice.open(Device.gpu(i)));
            }
            List<String> names =
                    devices.stream()
                            .map(device -> device.name() + ", " + device.pciBusId())
                            .toList();
            PrintWriter out = out();
            out.print(text(names, GpuTopology.query(devices)));
            out.flush();
        } finally {
            devices.forEach(CudaDevice::close);
        }
        return 0;
    }

    /** Returns a line for each GPU, the matrix of their links, and the kind. */
    static String text(List<String> names, GpuTopology topology) {
        StringBuilder text = new StringBuilder();
        for (int i = 0; i < names.size(); i++) {
            text.append("GPU").append(i).append("  ").append(names.get(i)).append('\n');
        }
        text.append('\n');
        topology.toString().lines().forEach(line -> text.append(line.stripTrailing()).append('\n'));
        String kind = topology.kind().name().toLowerCase(Locale.ROOT).replace('_', ' ');
        text.append("\nkind: ").append(kind);
        return text.append(" - ").append(topology.summary()).append('\n').toString();
    }
}
