// Records made up for tests.
#pragma once

#include "sluice/record.hpp"

namespace sluice::test {

/// Every member differs from its default.
inline Record sample_record() {
    Record r;
    r.version = "1.2.3";
    r.commit = "abcdef";
    r.date = "2030-01-02T03:04:05Z";
    r.command = "sluice bench --op gla -T 1";
    r.device = {.name = "a \"machine\"",
                .source = "imagined",
                .copy_bytes_per_s = 1e10,
                .matmul_flops_per_s = 1e11,
                .multiprocessors = 4,
                .cache_bytes = 1 << 20,
                .shared_memory_bytes = 1024};
    r.clock_mhz = 1980;
    r.backend = "cpu";
    r.kernel = "recurrent";
    r.precision = "float32";
    r.threads = 4;
    r.plan_hash = "0123456789abcdef";
    r.notice = "compiled";
    r.op = "gla";
    r.model = "a model";
    r.phase = Phase::kDecode;
    r.dims = {.B = 2, .T = 1, .H = 4, .HV = 8, .K = 64, .V = 32, .N = 2};
    r.context = 128;
    r.dtype = DType::kBFloat16;
    r.gate_dtype = DType::kFloat16;
    r.state_dtype = DType::kFloat64;
    r.gates = "spiky";
    r.seed = 18'446'744'073'709'551'615U;
    r.flops = 1e12;
    r.bytes_read = 2e9;
    r.bytes_written = 1e5;
    r.skipped = "a reason";
    r.cache = "flushed";
    r.samples = 9;
    r.measured_us = 125.5;
    r.p10_us = 120;
    r.p90_us = 140;
    r.relative_mad = 0.01;
    r.host_us = 12;
    r.io_bytes = 1000;
    r.peak_memory_bytes = 1100;
    r.peak_memory_method = "VmHWM";
    r.predicted_us = 100;
    r.floor_us = 50;
    r.h200_floor_us = 0.5;
    return r;
}

/// A prefill row of B 1, H = HV 4, K = V 128 that took `measured_us`, on a machine whose floor is a
/// tenth of that.
inline Record prefill_record(const char* op, std::int64_t tokens, double measured_us) {
    Record r = sample_record();
    r.skipped.clear();
    r.op = op;
    r.model.clear();
    r.kernel = r.op == "softmax" ? "online-softmax" : "chunked";
    r.backend = r.op == "softmax" ? "baseline" : "cpu";
    r.phase = Phase::kPrefill;
    r.context = 0;
    r.dims = {.B = 1, .T = tokens, .H = 4, .HV = 4, .K = 128, .V = 128, .N = 1};
    r.dtype = DType::kFloat32;
    r.measured_us = measured_us;
    r.floor_us = measured_us / 10;
    return r;
}

}  // namespace sluice::test
