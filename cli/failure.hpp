// What went wrong, as one line and as JSON.
#pragma once

#include <exception>
#include <nlohmann/json.hpp>
#include <string>

namespace sluice::cli {

[[nodiscard]] std::string failure_text(const std::exception& problem);

/// {"error": the text}, and of a sluice::Error also code, argument, value and accepted.
[[nodiscard]] nlohmann::ordered_json failure_json(const std::exception& problem);

/// Indented, with a newline at the end; bytes that are not UTF-8 are replaced.
[[nodiscard]] std::string json_text(const nlohmann::ordered_json& json);

}  // namespace sluice::cli
