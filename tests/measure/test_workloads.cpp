// Every row of the workloads table: mapped to an op with its dimensions, or refused with a reason.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "io/raw_file.hpp"
#include "measure/workloads.hpp"
#include "sluice/variants.hpp"
#include "support/refusal.hpp"

namespace sluice::measure {
namespace {

using nlohmann::json;
using test::refusal;

json table() { return json::parse(test::read_bytes(SLUICE_SOURCE_DIR "/data/workloads.json")); }

const Workload& only(const std::string& name) {
    static std::map<std::string, Workload> kept;
    const auto found = find_workloads(name);
    EXPECT_EQ(found.size(), 1U) << name;
    return kept[name] = found.front();
}

TEST(Workloads, AllRowsAreThere) {
    const json rows = table();
    ASSERT_EQ(workloads().size(), rows.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
        const Workload& w = workloads()[i];
        EXPECT_EQ(w.model, rows[i]["model"]);
        EXPECT_EQ(w.layers_recurrent, rows[i]["layers_recurrent"]);
        EXPECT_EQ(w.dim_k, rows[i]["dim_k"].is_null() ? json(0) : rows[i]["dim_k"]);
    }
}

TEST(Workloads, EachRowHasAnOpOrAReason) {
    const std::map<std::string, std::string> expected = {{"KDA", "kda"},
                                                         {"GDN", "gated_delta_rule"},
                                                         {"Lightning", "lightning"},
                                                         {"Mamba-2", "mamba2"},
                                                         {"GLA", "gla"},
                                                         {"RetNet", "retention"}};
    const std::set<std::string> outside = {"Mamba-1", "RG-LRU", "RWKV-7", "short-conv"};
    int mapped = 0, refused = 0;
    for (const Workload& w : workloads()) {
        SCOPED_TRACE(w.model);
        const bool published = w.heads_v > 0 && w.dim_k > 0;
        if (const auto op = expected.find(w.family); op != expected.end() && published) {
            const WorkloadShape shape = shape_of(w);
            EXPECT_EQ(shape.op, op->second);
            EXPECT_NO_THROW((void)find_variant(shape.op));
            EXPECT_EQ(shape.H, w.heads_qk);
            EXPECT_EQ(shape.HV, w.heads_v);
            EXPECT_EQ(shape.K, w.dim_k);
            EXPECT_EQ(shape.V, w.dim_v);
            EXPECT_EQ(shape.HV % shape.H, 0);
            ++mapped;
        } else {
            EXPECT_TRUE(outside.contains(w.family) || !published);
            const std::string reason = refusal([&] { (void)shape_of(w); });
            EXPECT_NE(reason.find(w.model), std::string::npos) << reason;
            EXPECT_TRUE(reason.starts_with("unsupported | model | ")) << reason;
            ++refused;
        }
    }
    EXPECT_EQ(mapped, 51);
    EXPECT_EQ(refused, 17);
}

/// The table's own split, for the rows that have one: {"qk": 8, "v": 16}, "1 (replicated)" for key
/// heads fewer than devices, or "not divisible".
TEST(Workloads, TensorParallelSplitIsTheTables) {
    const json rows = table();
    int compared = 0;
    for (std::size_t i = 0; i < rows.size(); ++i) {
        const Workload& w = workloads()[i];
        if (refusal([&] { (void)shape_of(w); }) != "accepted") continue;
        for (const auto& [name, split] : rows[i]["extra"]["tp_heads_per_gpu"].items()) {
            SCOPED_TRACE(w.model + " " + name);
            const std::int64_t tp = std::stoll(name.substr(2));
            ++compared;
            if (split.is_string()) {
                EXPECT_NE(refusal([&] { (void)shape_of(w, tp); }), "accepted");
                continue;
            }
            const WorkloadShape shape = shape_of(w, tp);
            EXPECT_EQ(shape.HV, split["v"].get<std::int64_t>());
            const json& qk = split["qk"];
            EXPECT_EQ(shape.H,
                      qk.is_string() ? std::stoll(qk.get<std::string>()) : qk.get<std::int64_t>());
        }
    }
    EXPECT_EQ(compared, 204);
}

TEST(Workloads, FoundByPartOfTheNameWhateverTheCase) {
    EXPECT_EQ(only("qwen3-NEXT").family, "GDN");
    EXPECT_EQ(find_workloads("RetNet").size(), 2U);
    EXPECT_EQ(refusal([] { (void)find_workloads("gpt-2"); }),
              "unsupported | model | 'gpt-2' | part of a name that `sluice bench --list-models` "
              "prints");
}

TEST(Workloads, RefusalsSayWhy) {
    EXPECT_EQ(refusal([] { (void)shape_of(only("GLA-1.3B"), 8); }),
              "unsupported | model | GLA-1.3B-100B (GLA) | tensor parallelism that divides 4 key "
              "heads and 4 value heads, not 8");
    EXPECT_EQ(
        refusal([] { (void)shape_of(only("LFM2-350M")); }),
        "unsupported | model | LFM2-350M (short-conv) | models of this family (it has a short "
        "convolution only: there is no matrix state)");
    EXPECT_EQ(refusal([] { (void)shape_of(only("Hunyuan")); }),
              "unsupported | model | Hunyuan-TurboS / T1 (Mamba-2) | models whose heads and "
              "dimensions are published");
    EXPECT_EQ(refusal([] { (void)shape_of(only("Kimi-K3"), 0); }), "value | tp | 0 | >= 1");
}

}  // namespace
}  // namespace sluice::measure
