// What the variant files share: their registration, and the inputs that most of them have.
#pragma once

#include <string>
#include <vector>

#include "sluice/variants.hpp"

namespace sluice::variant {

// One per file; the registry lists them.
Variant linear();
Variant retention();
Variant lightning();
Variant simple_gla();
Variant gla();
Variant mamba2();
Variant delta_rule();
Variant gated_delta_rule();
Variant kda();

// Inputs by their usual names and axes.
Input q();
Input k();
Input v();
Input beta();

// Settings as typed values. Each throws Error(kValue) naming the setting.
bool flag(const VariantRequest& request, const std::string& name, bool fallback);
double number(const VariantRequest& request, const std::string& name, double fallback);
std::string choice(const VariantRequest& request, const std::string& name,
                   const std::vector<std::string>& accepted);  // the first is the default
bool has_setting(const VariantRequest& request, const std::string& name);
bool has_tensor(const VariantRequest& request, const std::string& name);

// The parts that several variants have in common, each with its setting.
extern const VariantSetting kBetaSetting;    // beta = given | sigmoid | 2sigmoid
extern const VariantSetting kL2NormSetting;  // qk_l2norm = false | true
Expr beta_expr(const VariantRequest& request);
/// Declares g_raw, A_log and, where given, dt_bias; returns g_raw + dt_bias.
Expr declare_raw_gate(const VariantRequest& request, Spec& spec, std::vector<Axis> gate_axes,
                      std::vector<Axis> bias_axes);
Expr normalized_if_set(const VariantRequest& request, const std::string& input);

}  // namespace sluice::variant
