#include "sm90/gla/kernel.cuh"

// Read by the host, which launches with as much shared memory and as many threads.
extern "C" __constant__ const int sluice_gla_shape[2] = {
    static_cast<int>(sizeof(sluice::gla::Storage)), sluice::gla::Config::kThreads};
