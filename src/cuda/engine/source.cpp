#include "cuda/engine/source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <sstream>

#include "cuda/engine/compiler.hpp"
#include "cuda/engine/environment.hpp"
#include "sluice/error.hpp"

namespace sluice::cuda {

namespace {

bool is_identifier(std::string_view name) {
    const auto is_word = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; };
    return !name.empty() && std::isdigit(static_cast<unsigned char>(name[0])) == 0 &&
           std::all_of(name.begin(), name.end(), is_word);
}

void check_definitions(const KernelSource& source) {
    for (const auto& [name, value] : source.definitions) {
        if (!is_identifier(name)) {
            throw Error(ErrorCode::kValue, "definition", "'" + name + "'", "an identifier");
        }
        if (value.find_first_of("\n\r\\") != std::string::npos) {
            throw Error(ErrorCode::kValue, name, "'" + value + "'", "one line without backslashes");
        }
    }
}

/// Such paths become files below a temporary folder where nvcc compiles.
void check_path(const std::string& path) {
    const std::filesystem::path p(path);
    const bool inside = !path.empty() && p.is_relative() && path == p.lexically_normal().string() &&
                        *p.begin() != ".." && p.has_filename() &&
                        path.find_first_of("\"\n") == std::string::npos;
    if (!inside) {
        throw Error(ErrorCode::kValue, "header", "'" + path + "'", "a path like gla/config.cuh");
    }
}

std::string find_header(const KernelSource& source, const std::string& path) {
    check_path(path);
    const auto generated = source.generated.find(path);
    if (generated != source.generated.end()) return generated->second;
    for (const EmbeddedHeader& header : embedded_headers()) {
        if (header.path == path) return std::string(header.text);
    }
    throw Error(ErrorCode::kMissing, "header", "'" + path + "'",
                "a header of src/cuda or a generated one");
}

/// Paths of all #include "..." lines, also those that the preprocessor would skip.
std::vector<std::string> quoted_includes(const std::string& text) {
    std::vector<std::string> paths;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
        std::erase_if(line, [](char c) { return c == ' ' || c == '\t'; });
        constexpr std::string_view kDirective = "#include\"";
        const std::size_t end = line.find('"', kDirective.size());
        if (line.starts_with(kDirective) && end != std::string::npos) {
            paths.push_back(line.substr(kDirective.size(), end - kDirective.size()));
        }
    }
    return paths;
}

}  // namespace

std::string KernelSource::to_string() const {
    std::string text;
    for (const auto& [name, value] : definitions) {
        const std::string_view shown(name);
        constexpr std::string_view kPrefix = "SLUICE_";
        text +=
            fmt::format("{}{}={}", text.empty() ? "" : ", ",
                        shown.starts_with(kPrefix) ? shown.substr(kPrefix.size()) : shown, value);
    }
    return fmt::format("{} ({})", function, text);
}

std::string TranslationUnit::key() const {
    std::string text =
        fmt::format("{}\n{}\n{}", fmt::join(compile_options(), " "), function, program);
    // Lengths keep two different lists of headers from reading the same.
    for (const auto& [path, content] : headers) {
        text += fmt::format("{} {}\n{}", path, content.size(), content);
    }
    return text;
}

TranslationUnit translation_unit(const KernelSource& source) {
    check_definitions(source);
    TranslationUnit unit;
    unit.function = source.function;
    // Definitions are text of the program, not options: nothing quotes them on the way.
    for (const auto& [name, value] : source.definitions) {
        unit.program += fmt::format("#define {} {}\n", name, value);
    }
    if (environment().racecheck) unit.program += "#define SLUICE_EVERY_LANE_ARRIVES\n";
    unit.program += fmt::format("#include \"{}\"\n", source.entry);
    std::vector<std::string> open = {source.entry};
    while (!open.empty()) {
        const std::string path = std::move(open.back());
        open.pop_back();
        const auto [at, added] = unit.headers.try_emplace(path);
        if (!added) continue;
        at->second = find_header(source, path);
        for (std::string& next : quoted_includes(at->second)) open.push_back(std::move(next));
    }
    return unit;
}

}  // namespace sluice::cuda
