#include "support/tolerances.hpp"

namespace sluice::test {

const char* to_string(Quantity quantity) noexcept {
    constexpr const char* kNames[] = {"o", "state", "gradient", "gate gradient"};
    return kNames[static_cast<int>(quantity)];
}

double bound(Precision precision, Update update, Quantity quantity, Regime regime) {
    constexpr double kFloat64[] = {1e-12, 1e-12, 1e-11, 1e-11};
    constexpr double kFloat32[] = {1e-5, 1e-5, 2e-5, 1e-4};
    constexpr double kReducedAdditive[] = {4e-3, 5e-3, 8e-3, 2e-2};
    constexpr double kReducedDelta[] = {5e-3, 5e-3, 8e-3, 2e-2};
    const auto column = static_cast<int>(quantity);
    if (precision == Precision::kFloat64) return kFloat64[column];
    if (precision == Precision::kFloat32) return kFloat32[column];
    if (update == Update::kAdditive) return kReducedAdditive[column];
    const bool forward = quantity == Quantity::kOutput || quantity == Quantity::kState;
    if (forward && regime == Regime::kRepeatedKeys) return 1.5e-2;
    if (forward && regime == Regime::kReflections) return 1e-1;
    return kReducedDelta[column];
}

double storage_bound(Precision precision, DType dtype) {
    if (precision == Precision::kBFloat16) return 0;
    switch (dtype) {
        case DType::kBFloat16: return 0x1p-8;
        case DType::kFloat16: return 0x1p-11;
        case DType::kFloat32: return precision == Precision::kFloat64 ? 0x1p-24 : 0;
        default: return 0;
    }
}

}  // namespace sluice::test
