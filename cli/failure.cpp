#include "cli/failure.hpp"

#include <new>

#include "sluice/error.hpp"

namespace sluice::cli {

std::string failure_text(const std::exception& problem) {
    const bool no_memory = dynamic_cast<const std::bad_alloc*>(&problem) != nullptr;
    return no_memory ? "out of memory" : problem.what();
}

nlohmann::ordered_json failure_json(const std::exception& problem) {
    nlohmann::ordered_json object = {{"error", failure_text(problem)}};
    if (const auto* error = dynamic_cast<const Error*>(&problem)) {
        object["code"] = to_string(error->code());
        object["argument"] = error->argument();
        object["value"] = error->value();
        object["accepted"] = error->accepted();
    }
    return object;
}

std::string json_text(const nlohmann::ordered_json& json) {
    return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace sluice::cli
