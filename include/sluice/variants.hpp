// Ready-made members of the family. Each is defined in one file, src/spec/variants/<name>.cpp.
#pragma once

#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/spec.hpp"

namespace sluice {

/// What a caller knows before the spec exists: which tensors are at hand, and the variant's
/// settings as text ("lower_bound" -> "-5.0", "normalize" -> "true", "beta" -> "sigmoid").
struct VariantRequest {
    /// Name -> shape of the tensors given. Decides between forms (g or g_raw) and optional parts
    /// (mamba2's D, z, dt_bias). Empty: the variant's plain form.
    std::map<std::string, std::vector<std::int64_t>> tensors;
    std::map<std::string, std::string> settings;
};

struct VariantSetting {
    std::string name;
    std::string meaning;  // one line, with the default
};

struct Variant {
    std::string name;
    std::string summary;
    std::vector<VariantSetting> settings;
    Spec (*make)(const VariantRequest& request);
};

/// All variants, in the order of the tables: linear, retention, lightning, simple_gla, gla, mamba2,
/// delta_rule, gated_delta_rule, kda.
[[nodiscard]] std::span<const Variant> variants();
/// Throws Error(kUnsupported) that lists the known names; recurrences known to be outside the
/// family (mamba1, rg_lru, ...) are refused with the reason.
[[nodiscard]] const Variant& find_variant(std::string_view name);
/// find_variant(name).make(request), after refusing unknown settings by name.
[[nodiscard]] Spec make_spec(std::string_view name, const VariantRequest& request = {});

}  // namespace sluice
