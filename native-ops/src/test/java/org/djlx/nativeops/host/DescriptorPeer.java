// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.host;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HexFormat;

/**
 * The other process of {@link DescriptorChannelTest}: receives a file, changes it, sends it back.
 */
final class DescriptorPeer {

    static final Duration PATIENCE = Duration.ofSeconds(60);

    private DescriptorPeer() {}

    public static void main(String[] args) throws Exception {
        String sender = args[0];
        byte[] token = HexFormat.of().parseHex(args[1]);
        try (DescriptorChannel channel = DescriptorChannel.open()) {
            System.out.println(channel.name());
            DescriptorChannel.Received received = channel.receive(token, PATIENCE).orElseThrow();
            try (Descriptor file = received.descriptor()) {
                String text = DescriptorChannelTest.read(file);
                DescriptorChannelTest.write(file, text + " and back");
                DescriptorChannel.send(sender, token, received.tag() + 1, file, PATIENCE);
            }
            // Ends with the sender, which by then has tried to send more.
            System.in.read();
        }
        System.out.write("bye\n".getBytes(StandardCharsets.UTF_8));
    }
}
