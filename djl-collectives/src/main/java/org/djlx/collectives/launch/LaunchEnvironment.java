// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.launch;

import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import org.djlx.nativeops.host.Required;

/**
 * Reads rank, world size, local rank and the address of the store from the environment variables of
 * this process's launcher: torchrun, Open MPI, PMI and PMIx, Slurm, Kubernetes' indexed jobs, or
 * Kubeflow. {@link org.djlx.collectives.ProcessGroups#init(String)} reads it.
 *
 * <p>The values have the names of torchrun's variables. Each comes from the first variable that is
 * set:
 *
 * <table>
 * <caption>Variables, in the order in which they are tried</caption>
 * <tr><th>value</th><th>variables</th></tr>
 * <tr><td>{@code RANK}</td><td>{@code RANK}, {@code OMPI_COMM_WORLD_RANK}, {@code PMI_RANK}, {@code
 *     SLURM_PROCID}; if the world size is known, {@code PMIX_RANK}, {@code PET_NODE_RANK}, {@code
 *     JOB_COMPLETION_INDEX}</td></tr>
 * <tr><td>{@code WORLD_SIZE}</td><td>{@code WORLD_SIZE}, {@code OMPI_COMM_WORLD_SIZE}, {@code
 *     PMI_SIZE}, {@code SLURM_STEP_NUM_TASKS}, {@code SLURM_NTASKS}, {@code PET_NNODES}</td></tr>
 * <tr><td>{@code LOCAL_RANK}</td><td>{@code LOCAL_RANK}, {@code OMPI_COMM_WORLD_LOCAL_RANK}, {@code
 *     MPI_LOCALRANKID}, {@code SLURM_LOCALID}</td></tr>
 * <tr><td>{@code LOCAL_WORLD_SIZE}</td><td>{@code LOCAL_WORLD_SIZE}, {@code
 *     OMPI_COMM_WORLD_LOCAL_SIZE}, {@code MPI_LOCALNRANKS}, {@code SLURM_STEP_TASKS_PER_NODE}</td></tr>
 * <tr><td>{@code MASTER_ADDR}</td><td>{@code MASTER_ADDR}, {@code PET_MASTER_ADDR}, the first host
 *     of {@code SLURM_STEP_NODELIST} or {@code SLURM_JOB_NODELIST}; {@code 127.0.0.1} if MPI says
 *     that all ranks are on this host</td></tr>
 * <tr><td>{@code MASTER_PORT}</td><td>{@code MASTER_PORT}, {@code PET_MASTER_PORT}, a number from
 *     {@code SLURM_JOB_ID}, or from {@code PMIX_NAMESPACE}; 29500 with every launcher but
 *     torchrun</td></tr>
 * <tr><td>{@code DJLX_BIND_ADDRESS}</td><td>{@code DJLX_BIND_ADDRESS}, {@code
 *     MASTER_ADDR}</td></tr>
 * </table>
 *
 * <ul>
 *   <li>{@code MASTER_ADDR} is the advertised address of rank 0, to which all ranks connect. Rank 0
 *       listens on {@code DJLX_BIND_ADDRESS}.
 *   <li>Variables of Slurm count in the tasks of {@code srun} only: a batch script has them, too,
 *       and is no rank. Of the ranks of an mpirun in a job of Slurm, only the job's nodes and
 *       number count, since mpirun starts its own daemons with {@code srun}.
 *   <li>{@code PET_NODE_RANK} and {@code PET_NNODES} count if {@code PET_NPROC_PER_NODE} is 1 or
 *       not set; otherwise {@link Launch} starts the ranks of a node.
 *   <li>An option of the {@link Builder} wins over each variable.
 * </ul>
 *
 * <p>Its main method prints the values and where each comes from: {@code srun java -cp app.jar
 * org.djlx.collectives.launch.LaunchEnvironment}. Immutable.
 */
public final class LaunchEnvironment {

    private static final int DEFAULT_PORT = 29500; // torchrun's
    private static final int FIRST_PORT = 15_000; // of ports made from a job's number
    private static final int PORTS = 15_000;
    private static final String OPTION = "an option";
    private static final String BIND_ADDRESS = "DJLX_BIND_ADDRESS";
    private static final List<String> NAMES =
            List.of(
                    "RANK",
                    "WORLD_SIZE",
                    "LOCAL_RANK",
                    "LOCAL_WORLD_SIZE",
                    "MASTER_ADDR",
                    "MASTER_PORT",
                    BIND_ADDRESS);
    // A host of a Slurm node list: text and lists of ranges in brackets, up to a comma outside
    // them.
    private static final Pattern FIRST_HOST = Pattern.compile("(?:[^,\\[]|\\[[^]]*])+");
    private static final Pattern BRACKETS = Pattern.compile("\\[([^],-]*)[^]]*]");
    private static final Pattern TASKS = Pattern.compile("(\\d+)(?:\\(x(\\d{1,9})\\))?");
    private static final LaunchEnvironment CURRENT = of(System.getenv());

    private final Map<String, String> environment;
    private final Map<String, String> values = new LinkedHashMap<>();
    private final Map<String, String> sources = new HashMap<>();

    private LaunchEnvironment(Map<String, String> environment, Map<String, String> options) {
        this.environment = new HashMap<>(environment);
        options.forEach((name, value) -> put(name, value, OPTION));
        boolean mpirun = has("OMPI_COMM_WORLD_RANK") || has("MPI_LOCALRANKID");
        boolean task = !mpirun && (has("SLURM_STEP_ID") || !has("SLURM_JOB_ID"));
        boolean pet = List.of("", "1").contains(environment.getOrDefault("PET_NPROC_PER_NODE", ""));
        take("RANK", "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", task ? "SLURM_PROCID" : "");
        take("WORLD_SIZE", "WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE");
        take("LOCAL_RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID");
        take("LOCAL_WORLD_SIZE", "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE");
        take("LOCAL_WORLD_SIZE", "MPI_LOCALNRANKS");
        take("MASTER_ADDR", "MASTER_ADDR", "PET_MASTER_ADDR");
        take("MASTER_PORT", "MASTER_PORT", "PET_MASTER_PORT");
        if (task) {
            takeSlurm();
        }
        take("WORLD_SIZE", pet ? "PET_NNODES" : "");
        if (has("WORLD_SIZE")) {
            take("RANK", "PMIX_RANK", pet ? "PET_NODE_RANK" : "", "JOB_COMPLETION_INDEX");
        }
        if (has("RANK") && !"RANK".equals(sources.get("RANK"))) {
            completeAddress(task);
        }
        take(BIND_ADDRESS, BIND_ADDRESS);
        put(BIND_ADDRESS, get("MASTER_ADDR"), "MASTER_ADDR");
    }

    /** {@return the values from the variables of this process} */
    public static LaunchEnvironment current() {
        return CURRENT;
    }

    /** Reads an environment. */
    public static LaunchEnvironment of(Map<String, String> environment) {
        return new LaunchEnvironment(Required.argument("of: environment", environment), Map.of());
    }

    /** {@return a builder, which starts with the variables of this process} */
    public static Builder builder() {
        return new Builder();
    }

    private boolean has(String name) {
        return values.containsKey(name) || !value(name).isEmpty();
    }

    private String value(String variable) {
        return environment.getOrDefault(variable, "").trim();
    }

    private void put(String name, String value, String source) {
        if (value != null && values.putIfAbsent(name, value.trim()) == null) {
            sources.put(name, source);
        }
    }

    /** Sets a value from the first of some variables that is set, unless it is set already. */
    private void take(String name, String... variables) {
        Arrays.stream(variables)
                .filter(variable -> !value(variable).isEmpty())
                .findFirst()
                .ifPresent(variable -> put(name, environment.get(variable), variable));
    }

    private void takeSlurm() {
        take("WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS");
        take("LOCAL_RANK", "SLURM_LOCALID");
        String tasks = "SLURM_STEP_TASKS_PER_NODE";
        put("LOCAL_WORLD_SIZE", tasksOf(value("SLURM_NODEID"), value(tasks)), tasks);
        takeAddress("SLURM_STEP_NODELIST", "." + environment.getOrDefault("SLURM_STEP_ID", "0"));
    }

    /** Takes the first host of a list of Slurm, and a port from the job's number. */
    private void takeAddress(String hosts, String step) {
        for (String list : List.of(hosts, "SLURM_JOB_NODELIST")) {
            put("MASTER_ADDR", has(list) ? firstHost(value(list)) : null, list);
        }
        if (has("SLURM_JOB_ID")) {
            put("MASTER_PORT", port(value("SLURM_JOB_ID") + step), "SLURM_JOB_ID");
        }
    }

    /** Without torchrun's variables: the address of ranks on one host, and a port. */
    private void completeAddress(boolean task) {
        if (has("WORLD_SIZE") && get("WORLD_SIZE").equals(get("LOCAL_WORLD_SIZE"))) {
            put("MASTER_ADDR", "127.0.0.1", sources.get("LOCAL_WORLD_SIZE") + ": one host");
        }
        if (has("PMIX_NAMESPACE")) {
            put("MASTER_PORT", port(value("PMIX_NAMESPACE")), "PMIX_NAMESPACE");
        }
        if (!task) {
            takeAddress("SLURM_JOB_NODELIST", "");
        }
        put("MASTER_PORT", Integer.toString(DEFAULT_PORT), "torchrun's default");
    }

    private static String port(String job) {
        return Integer.toString(FIRST_PORT + Math.floorMod(job.hashCode(), PORTS));
    }

    /** Returns the first host of a list such as {@code gpu[07-09,12],login1}. */
    private static String firstHost(String hosts) {
        Matcher first = FIRST_HOST.matcher(hosts.trim());
        return BRACKETS.matcher(first.find() ? first.group() : hosts).replaceAll("$1");
    }

    /** Returns the number of tasks of a node in a list such as {@code 4(x2),3}; null if none. */
    private static String tasksOf(String node, String tasks) {
        if (!node.matches("\\d{1,9}")) {
            return null;
        }
        int left = Integer.parseInt(node);
        Matcher part = TASKS.matcher(tasks);
        while (part.find()) {
            left -= part.group(2) == null ? 1 : Integer.parseInt(part.group(2));
            if (left < 0) {
                return part.group(1);
            }
        }
        return null;
    }

    /**
     * Returns a value.
     *
     * @param name the name of a variable of torchrun, such as {@code RANK}, or of another variable
     * @return the value of the table above, or else of the variable of that name; null if there is
     *     none
     */
    public String get(String name) {
        return values.getOrDefault(name, environment.get(name));
    }

    /**
     * {@return the variable that a value of the table above comes from, or a remark; null if there
     * is no value}
     */
    public String source(String name) {
        return sources.get(name);
    }

    /**
     * {@return the variables as they were given, and the options under the names of variables}
     * Values of other launchers' variables are left out. If an option sets the address, this omits
     * {@code TORCHELASTIC_USE_AGENT_STORE}: the launcher's store is at another address.
     */
    public Map<String, String> given() {
        Map<String, String> all = new HashMap<>(environment);
        values.forEach(
                (name, value) -> {
                    if (OPTION.equals(sources.get(name))) {
                        all.put(name, value);
                    }
                });
        if (OPTION.equals(sources.get("MASTER_ADDR"))) {
            all.remove("TORCHELASTIC_USE_AGENT_STORE");
        }
        return all;
    }

    /** {@return all variables, with the values of the table above under torchrun's names} */
    public Map<String, String> variables() {
        Map<String, String> all = new HashMap<>(environment);
        all.putAll(values);
        return all;
    }

    /** {@return whether this process is one of several ranks} */
    public boolean isDistributed() {
        return get("RANK") != null && get("WORLD_SIZE") != null && !get("WORLD_SIZE").equals("1");
    }

    /**
     * Returns a value that a rank needs.
     *
     * @throws IllegalArgumentException if there is none; says what to do
     */
    public String require(String name) {
        String value = get(name);
        if (value == null || value.isBlank()) {
            throw new IllegalArgumentException(
                    ("the environment variable %s is not set, and no launcher's variable replaces"
                         + " it; start the ranks with torchrun, %s, srun or mpirun, or set RANK,"
                         + " WORLD_SIZE, MASTER_ADDR and MASTER_PORT yourself. Found: %s")
                            .formatted(name, Launch.class.getName(), this));
        }
        return value;
    }

    /**
     * Returns a number that a rank needs.
     *
     * @throws IllegalArgumentException if there is none, or it is not an integer
     */
    public int requireInt(String name) {
        String value = require(name);
        try {
            return Integer.parseInt(value);
        } catch (NumberFormatException e) {
            throw new IllegalArgumentException(
                    "the environment variable %s must be an integer, but is '%s'"
                            .formatted(sources.getOrDefault(name, name), value),
                    e);
        }
    }

    /** Lists the values and where each comes from: {@code RANK=3 (SLURM_PROCID), …}. */
    @Override
    public String toString() {
        String known =
                NAMES.stream()
                        .filter(values::containsKey)
                        .map(name -> name + "=" + values.get(name) + " (" + sources.get(name) + ")")
                        .collect(Collectors.joining(", "));
        return known.isEmpty() ? "nothing" : known;
    }

    /**
     * Prints the values and where each comes from. Prints one line, so that the lines of several
     * ranks do not mix.
     */
    public static void main(String[] args) {
        List<String> unknown = NAMES.stream().filter(name -> CURRENT.get(name) == null).toList();
        System.out.println(CURRENT + (unknown.isEmpty() ? "" : "; not known: " + unknown));
    }

    /** Options that win over the variables of this process. */
    public static final class Builder {

        private Map<String, String> environment = System.getenv();
        private final Map<String, String> options = new HashMap<>();

        private Builder() {}

        /** Sets the variables; those of this process by default. */
        Builder optEnvironment(Map<String, String> environment) {
            this.environment = environment;
            return this;
        }

        /** Sets the rank and the world size. */
        public Builder optRank(int rank, int worldSize) {
            options.put("RANK", Integer.toString(rank));
            options.put("WORLD_SIZE", Integer.toString(worldSize));
            return this;
        }

        /**
         * Sets the advertised address of the store, the same on all ranks, which connect to it: a
         * name or an address of the host of rank 0, and the port.
         */
        public Builder optMasterAddress(String address, int port) {
            options.put("MASTER_ADDR", Required.argument("optMasterAddress: address", address));
            options.put("MASTER_PORT", Integer.toString(port));
            return this;
        }

        /**
         * Sets the address on which rank 0 listens, one of its host: {@code 0.0.0.0} for all, if
         * the advertised address, which is the default, is that of a proxy or a service.
         */
        public Builder optBindAddress(String address) {
            options.put(BIND_ADDRESS, Required.argument("optBindAddress: address", address));
            return this;
        }

        /** {@return the environment} */
        public LaunchEnvironment build() {
            return new LaunchEnvironment(environment, options);
        }
    }
}
