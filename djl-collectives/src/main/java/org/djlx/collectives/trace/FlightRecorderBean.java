// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.trace;

import java.lang.management.ManagementFactory;
import java.util.concurrent.Executor;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import javax.management.InstanceAlreadyExistsException;
import javax.management.JMException;
import javax.management.MBeanServer;
import javax.management.ObjectName;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Registers a recorder with JMX, soon after the group is created. A failure is logged and does not
 * affect the group.
 */
final class FlightRecorderBean implements FlightRecorderMXBean {

    private static final Logger logger = LoggerFactory.getLogger(FlightRecorderBean.class);

    /**
     * A separate thread, which ends when it is idle. The JDK's registry can leave a lock held when
     * memory runs out, so a call may never return; creating and destroying groups must not wait.
     */
    private static final Executor THREAD =
            new ThreadPoolExecutor(
                    0,
                    1,
                    100,
                    TimeUnit.MILLISECONDS,
                    new LinkedBlockingQueue<>(),
                    body -> {
                        Thread thread = new Thread(body, "flight-jmx");
                        thread.setDaemon(true);
                        return thread;
                    });

    private final FlightRecorder recorder;
    private ObjectName name; // null unless registered; confined to the thread

    private FlightRecorderBean(FlightRecorder recorder) {
        this.recorder = recorder;
    }

    private interface Calls {
        void make(MBeanServer server) throws JMException;
    }

    /** Registers a recorder. Returns a handle that unregisters it. */
    static Runnable register(FlightRecorder recorder) {
        FlightRecorderBean bean = new FlightRecorderBean(recorder);
        call(recorder + " over JMX", bean::register);
        return () -> call("over JMX that " + recorder + " is gone", bean::unregister);
    }

    private static void call(String purpose, Calls calls) {
        try {
            THREAD.execute(
                    () -> {
                        try {
                            calls.make(ManagementFactory.getPlatformMBeanServer());
                        } catch (JMException | RuntimeException | Error e) {
                            DumpWriter.lost(purpose, e);
                        }
                    });
        } catch (OutOfMemoryError e) { // The system may refuse threads for the moment.
            DumpWriter.lost(purpose, e);
        }
    }

    private void register(MBeanServer server) throws JMException {
        String first =
                "org.djlx.collectives:type=FlightRecorder,group=%s,rank=%s"
                        .formatted(ObjectName.quote(getGroup()), getRank());
        for (int instance = 1; name == null; instance++) {
            ObjectName next =
                    new ObjectName(instance == 1 ? first : first + ",instance=" + instance);
            try {
                server.registerMBean(this, next);
                name = next;
            } catch (InstanceAlreadyExistsException e) {
                logger.debug("{} is taken", next);
            }
        }
    }

    private void unregister(MBeanServer server) throws JMException {
        if (name != null) {
            server.unregisterMBean(name);
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
