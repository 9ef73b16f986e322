// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.engine;

import ai.djl.repository.zoo.ModelLoader;
import ai.djl.repository.zoo.ModelZoo;
import ai.djl.repository.zoo.ZooProvider;
import java.util.Collection;
import java.util.Objects;
import java.util.Set;
import java.util.stream.Stream;

/**
 * The models of all PyTorch model zoos for the engine PyTorch-P2P: DJL looks only into zoos that
 * name the engine. A {@code Criteria} with {@code optEngine("PyTorch-P2P")} and without a group id
 * finds them; so does the group id {@value #GROUP_ID}. {@code ModelZoo.listModels} lists these
 * models twice, under their own zoo and under this one.
 */
final class P2pModelZoo extends ModelZoo {

    static final String GROUP_ID = "ai.djl.pytorch-p2p";

    /** Provides the zoo to DJL's ServiceLoader. */
    public static final class Provider implements ZooProvider {

        @Override
        public ModelZoo getModelZoo() {
            return new P2pModelZoo();
        }
    }

    @Override
    public String getGroupId() {
        return GROUP_ID;
    }

    @Override
    public Set<String> getSupportedEngines() {
        return Set.of(P2pEngine.NAME);
    }

    @Override
    public Collection<ModelLoader> getModelLoaders() {
        return zoos().flatMap(zoo -> zoo.getModelLoaders().stream()).toList();
    }

    @Override
    public ModelLoader getModelLoader(String name) {
        return zoos().map(zoo -> zoo.getModelLoader(name))
                .filter(Objects::nonNull)
                .findFirst()
                .orElse(null);
    }

    /** Returns zoos for PyTorch that do not name this engine. */
    private static Stream<ModelZoo> zoos() {
        return ModelZoo.listModelZoo().stream()
                .filter(
                        zoo -> {
                            Set<String> engines = zoo.getSupportedEngines();
                            return engines.contains("PyTorch") && !engines.contains(P2pEngine.NAME);
                        });
    }
}
