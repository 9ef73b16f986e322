// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.trace;

import java.lang.management.ManagementFactory;
import java.time.Duration;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeoutException;
import javax.management.InstanceAlreadyExistsException;
import javax.management.JMException;
import javax.management.MBeanServer;
import javax.management.ObjectName;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Registers a recorder with JMX. A failure is logged and does not affect the group. */
final class FlightRecorderBean implements FlightRecorderMXBean {

    private static final Logger logger = LoggerFactory.getLogger(FlightRecorderBean.class);

    /**
     * The JDK's registry can leave a lock held when memory runs out, so a later call may never
     * return. Without a time limit, creating and destroying groups would then hang.
     */
    private static final BoundedCalls CALLS = new BoundedCalls("flight-jmx", Duration.ofSeconds(5));

    private final FlightRecorder recorder;

    private FlightRecorderBean(FlightRecorder recorder) {
        this.recorder = recorder;
    }

    /** Registers a recorder. Returns a handle that unregisters it. */
    static Runnable register(FlightRecorder recorder) {
        try {
            return CALLS.call(
                    () -> {
                        MBeanServer server = ManagementFactory.getPlatformMBeanServer();
                        ObjectName name = register(server, new FlightRecorderBean(recorder));
                        return () -> unregister(server, name);
                    });
        } catch (ExecutionException | TimeoutException | RuntimeException | OutOfMemoryError e) {
            DumpWriter.lost(recorder + " over JMX", e);
            return () -> {};
        }
    }

    private static ObjectName register(MBeanServer server, FlightRecorderBean bean)
            throws JMException {
        String name =
                "org.djlx.collectives:type=FlightRecorder,group=%s,rank=%s"
                        .formatted(ObjectName.quote(bean.getGroup()), bean.getRank());
        for (int instance = 1; ; instance++) {
            ObjectName next = new ObjectName(instance == 1 ? name : name + ",instance=" + instance);
            try {
                server.registerMBean(bean, next);
                return next;
            } catch (InstanceAlreadyExistsException e) {
                logger.debug("{} is taken", next);
            }
        }
    }

    private static void unregister(MBeanServer server, ObjectName name) {
        try {
            CALLS.call(
                    () -> {
                        server.unregisterMBean(name);
                        return null;
                    });
        } catch (ExecutionException | TimeoutException | RuntimeException | OutOfMemoryError e) {
            DumpWriter.lost("over JMX that " + name + " is gone", e);
        }
    }

    @Override
    public String getGroup() {
        return recorder.group();
    }

    @Override
    public int getRank() {
        return recorder.rank();
    }

    @Override
    public int getWorldSize() {
        return recorder.worldSize();
    }

    @Override
    public String getBackend() {
        return recorder.backend();
    }

    @Override
    public int getOperations() {
        return recorder.dump().entries().size();
    }

    @Override
    public long getLastScheduled() {
        return recorder.dump().lastScheduled();
    }

    @Override
    public long getLastStarted() {
        return recorder.dump().lastStarted();
    }

    @Override
    public long getLastCompleted() {
        return recorder.dump().lastCompleted();
    }

    @Override
    public String dumpJson() {
        return recorder.dump().toJson();
    }
}
