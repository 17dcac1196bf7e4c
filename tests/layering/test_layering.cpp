// Includes point one way: each folder may use its own headers and those of the layers named here.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

/// Every folder with its whole reach: the table is the architecture.
const std::map<std::string, std::set<std::string>> kLayers = {
    {"core", {}},
    {"io", {"core"}},
    {"spec", {"core"}},
    {"hw", {"core", "spec"}},
    {"plan", {"core", "spec", "hw"}},
    {"cpu", {"core", "spec", "hw", "plan"}},
    {"cuda", {"core", "spec", "hw", "plan"}},
    {"baseline", {"core", "spec", "hw", "plan", "cpu"}},
    {"runtime", {"core", "spec", "hw", "plan", "cpu", "cuda"}},
    {"measure", {"core", "io", "spec", "hw", "plan", "cpu", "cuda", "baseline", "runtime"}},
    {"cli", {"core", "io", "spec", "hw", "plan", "cpu", "cuda", "baseline", "runtime", "measure"}},
};

const fs::path kRoot = SLUICE_SOURCE_DIR;

struct Include {
    std::string path;
    bool quoted;
};

std::vector<Include> includes_of(const fs::path& file) {
    static const std::regex kInclude(R"(^\s*#\s*include\s*([<"])([^>"]+)[>"])");
    std::vector<Include> found;
    std::ifstream in(file);
    for (std::string line; std::getline(in, line);) {
        std::smatch match;
        if (std::regex_search(line, match, kInclude)) {
            found.push_back({match[2], match[1] == "\""});
        }
    }
    return found;
}

std::vector<fs::path> sources_under(const fs::path& folder) {
    std::vector<fs::path> files;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
        const std::string extension = entry.path().extension();
        if (extension == ".cpp" || extension == ".hpp") files.push_back(entry.path());
    }
    return files;
}

std::string first_part(const fs::path& path) { return path.begin()->string(); }

bool has_folder(const std::string& path) { return path.find('/') != std::string::npos; }

/// Folder of a file of src/ or cli/.
std::string layer_of(const fs::path& file) {
    const fs::path relative = fs::relative(file, kRoot);
    return first_part(relative) == "src" ? first_part(fs::relative(file, kRoot / "src"))
                                         : first_part(relative);
}

void check_file(const fs::path& file) {
    SCOPED_TRACE(fs::relative(file, kRoot).string());
    const std::string layer = layer_of(file);
    ASSERT_TRUE(kLayers.contains(layer)) << layer << " has no place in the table of layers";
    for (const Include& include : includes_of(file)) {
        if (!include.quoted) continue;
        const std::string from = has_folder(include.path) ? first_part(include.path) : layer;
        if (from == "sluice" || from == layer) continue;
        EXPECT_TRUE(kLayers.at(layer).contains(from)) << "includes \"" << include.path << "\"";
    }
}

TEST(Layering, TheTableHasNoCycles) {
    for (const auto& [layer, reach] : kLayers) {
        for (const std::string& lower : reach) {
            ASSERT_TRUE(kLayers.contains(lower)) << lower;
            EXPECT_FALSE(kLayers.at(lower).contains(layer)) << layer << " and " << lower;
            for (const std::string& lowest : kLayers.at(lower)) {
                EXPECT_TRUE(reach.contains(lowest))
                    << layer << " reaches " << lower << " but not " << lowest;
            }
        }
    }
}

TEST(Layering, IncludesPointDownwards) {
    std::size_t files = 0;
    for (const char* folder : {"src", "cli"}) {
        for (const fs::path& file : sources_under(kRoot / folder)) {
            check_file(file);
            ++files;
        }
    }
    EXPECT_GT(files, 30U);
}

// Kernels are compiled apart from the library, from headers that it carries: they see each other,
// and what several share is below what is one kernel's.
TEST(Layering, DeviceHeadersIncludeDeviceHeadersOnly) {
    const fs::path device = kRoot / "src/cuda";
    for (const auto& entry : fs::recursive_directory_iterator(device)) {
        if (entry.path().extension() != ".cuh") continue;
        const std::string from = first_part(fs::relative(entry.path(), device));
        for (const Include& include : includes_of(entry.path())) {
            if (!include.quoted) continue;
            EXPECT_TRUE(include.path.ends_with(".cuh") && fs::exists(device / include.path))
                << entry.path() << " includes \"" << include.path << "\"";
            EXPECT_FALSE(from == "tile" && first_part(include.path) != "tile") << entry.path();
        }
    }
}

TEST(Layering, IncludedHeadersExist) {
    for (const char* folder : {"src", "cli"}) {
        for (const fs::path& file : sources_under(kRoot / folder)) {
            for (const Include& include : includes_of(file)) {
                if (!include.quoted) continue;
                const bool exists = fs::exists(kRoot / "include" / include.path) ||
                                    fs::exists(kRoot / "src" / include.path) ||
                                    fs::exists(kRoot / include.path) ||
                                    fs::exists(file.parent_path() / include.path);
                EXPECT_TRUE(exists) << file << " includes \"" << include.path << "\"";
            }
        }
    }
}

// A program that uses the library needs no header but its own and the standard ones.
TEST(Layering, PublicHeadersNeedTheStandardLibraryOnly) {
    std::size_t files = 0;
    for (const fs::path& file : sources_under(kRoot / "include")) {
        SCOPED_TRACE(fs::relative(file, kRoot).string());
        for (const Include& include : includes_of(file)) {
            if (include.quoted) {
                EXPECT_EQ(first_part(include.path), "sluice") << include.path;
            } else {
                EXPECT_FALSE(has_folder(include.path) || include.path.ends_with(".h"))
                    << "<" << include.path << ">";
            }
        }
        ++files;
    }
    EXPECT_GT(files, 10U);
}

TEST(Layering, TheUmbrellaHeaderIncludesEveryPublicHeader) {
    std::set<std::string> included;
    for (const Include& include : includes_of(kRoot / "include/sluice/sluice.hpp")) {
        included.insert(include.path);
    }
    for (const fs::path& file : sources_under(kRoot / "include")) {
        const std::string name = fs::relative(file, kRoot / "include");
        if (name != "sluice/sluice.hpp") {
            EXPECT_TRUE(included.contains(name)) << name;
        }
    }
}

TEST(Layering, HeadersAreGuarded) {
    for (const char* folder : {"include", "src", "cli", "tests"}) {
        for (const fs::path& file : sources_under(kRoot / folder)) {
            if (file.extension() != ".hpp") continue;
            std::ifstream in(file);
            bool guarded = false;
            for (std::string line; !guarded && std::getline(in, line);) {
                guarded = line == "#pragma once";
            }
            EXPECT_TRUE(guarded) << file;
        }
    }
}

TEST(Layering, FilesAreShort) {
    for (const char* folder : {"include", "src", "cli", "tests"}) {
        for (const fs::path& file : sources_under(kRoot / folder)) {
            std::ifstream in(file);
            std::size_t lines = 0;
            for (std::string line; std::getline(in, line);) ++lines;
            EXPECT_LT(lines, 1000U) << file;
        }
    }
}

}  // namespace
