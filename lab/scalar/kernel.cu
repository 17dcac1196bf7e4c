#include "sm90/scalar/kernel.cuh"

// Read by the host, which launches with as much shared memory and as many threads.
extern "C" __constant__ const int sluice_scalar_shape[2] = {
    static_cast<int>(sizeof(sluice::scalar::Storage)), sluice::scalar::Config::kThreads};
