#include "cuda/engine/compiler.hpp"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <sstream>

#include "sluice/error.hpp"

namespace sluice::cuda {

namespace {

/// The number that stands before `words` in `text`; 0 if there is none.
int number_before(std::string_view text, std::string_view words) {
    const std::size_t end = text.find(words);
    if (end == std::string_view::npos) return 0;
    const std::size_t last = text.find_last_not_of("0123456789", end - 1);
    const std::size_t begin = last == std::string_view::npos ? 0 : last + 1;
    int value = 0;
    std::from_chars(text.data() + begin, text.data() + end, value);
    return value;
}

}  // namespace

ResourceUsage parse_resource_usage(std::string_view log, std::string_view function) {
    const std::size_t at = log.find(fmt::format("Function properties for {}\n", function));
    if (at == std::string_view::npos) return {};
    const std::string_view properties = log.substr(at);
    return {.registers = number_before(properties, " registers"),
            .stack_bytes = number_before(properties, " bytes stack frame"),
            .spill_store_bytes = number_before(properties, " bytes spill stores"),
            .spill_load_bytes = number_before(properties, " bytes spill loads")};
}

std::vector<std::string> performance_warnings(std::string_view log) {
    std::vector<std::string> found;
    std::istringstream lines{std::string(log)};
    for (std::string line; std::getline(lines, line);) {
        if (line.find("(C75") != std::string::npos) found.push_back(line);
    }
    return found;
}

std::span<const std::string_view> compile_options() noexcept {
    static constexpr std::array<std::string_view, 3> kOptions = {
        "--gpu-architecture=sm_90a", "--std=c++20", "--ptxas-options=-v"};
    return kOptions;
}

const Compiler* find_compiler() {
    static const std::unique_ptr<const Compiler> kCompiler = [] {
        std::unique_ptr<const Compiler> found = open_nvrtc(environment());
        return found ? std::move(found) : open_nvcc(environment());
    }();
    return kCompiler.get();
}

void refuse_source(const std::string& compiler, const TranslationUnit& unit,
                   const std::string& log) {
    throw Error(ErrorCode::kUnsupported, unit.function,
                fmt::format("source that {} refuses:\n{}\n{}", compiler, unit.program, log),
                "source that compiles for sm_90a");
}

}  // namespace sluice::cuda
