// Kernels for tests. Memory: a vector of `count` elements; no thread waits for another.
#include "scale.cuh"

struct Vectors {
    Element* in;
    Element* out;
};

// out[i] = factor * in[i]; a grid of any size.
extern "C" __global__ void scale(Vectors vectors, int count, double factor) {
    for (int i = first(); i < count; i += step()) {
        vectors.out[i] = vectors.in[i] * static_cast<Element>(factor);
    }
}

// data[i] += value.
extern "C" __global__ void add(Element* data, int count, Element value) {
    for (int i = first(); i < count; i += step()) {
        data[i] += value;
    }
}
