// Calls that the Python package keeps: what is found again, what is not, and by how many threads.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "python/src/declared_call.hpp"

namespace sluice::python {
namespace {

constexpr Device kGpu{DeviceKind::kCuda, 0};

TensorView at(std::uintptr_t address, DType dtype, std::initializer_list<std::int64_t> shape) {
    return {reinterpret_cast<void*>(address), dtype, shape, kGpu};
}

DeclaredCall gla() {
    return DeclaredCall(
        "phase=prefill;variant=gla;tensor=q;tensor=k;tensor=v;tensor=g;"
        "tensor=state;result=out");
}

/// The tensors of a call of so many tokens, without memory, from `address` on.
std::vector<TensorView> tensors(std::int64_t tokens, std::uintptr_t address = 1 << 20) {
    std::vector<TensorView> views;
    for (int i = 0; i < 4; ++i) {
        views.push_back(at(address, DType::kBFloat16, {1, tokens, 2, 64}));
        address += 1 << 20;
    }
    views.push_back(at(address, DType::kFloat32, {1, 2, 64, 64}));
    return views;
}

std::unique_ptr<BoundCall> kept(const std::vector<TensorView>& views,
                                std::optional<double> scale = {}) {
    auto call = std::make_unique<BoundCall>();
    call->views = views;
    call->options.scale = scale;
    return call;
}

TEST(KeptCalls, AreFoundWhereverTheirTensorsAre) {
    DeclaredCall declared = gla();
    EXPECT_EQ(declared.take(tensors(64), {}), nullptr);
    auto call = kept(tensors(64));
    const BoundCall* const address = call.get();
    declared.keep(std::move(call));
    const std::unique_ptr<BoundCall> found = declared.take(tensors(64, 1 << 28), {});
    EXPECT_EQ(found.get(), address);
    EXPECT_EQ(declared.take(tensors(64), {}), nullptr) << "it is in use";
}

TEST(KeptCalls, AreNotTakenForUnlikeTensors) {
    using Change = void (*)(std::vector<TensorView>&);
    const std::pair<const char*, Change> changes[] = {
        {"tokens", [](auto& views) { views = tensors(65); }},
        {"a dtype", [](auto& views) { views[3].dtype = DType::kFloat16; }},
        {"a stride", [](auto& views) { views[2].stride_elements[1] += 64; }},
        {"a rank",
         [](auto& views) {
             views[4] = at(1 << 26, DType::kFloat32, {1, 2, 64 * 64});
         }},
        {"alignment", [](auto& views) { views[0].data = static_cast<char*>(views[0].data) + 16; }},
        {"a device", [](auto& views) { views[1].device.index = 1; }},
        {"another state", [](auto& views) { views[4].extents[0] = 2; }},
    };
    for (const auto& [what, change] : changes) {
        DeclaredCall declared = gla();
        declared.keep(kept(tensors(64)));
        std::vector<TensorView> other = tensors(64);
        change(other);
        EXPECT_EQ(declared.take(other, {}), nullptr) << what;
        EXPECT_NE(declared.take(tensors(64), {}), nullptr) << what;
    }
}

TEST(KeptCalls, AreNotTakenForAnotherScale) {
    DeclaredCall declared = gla();
    declared.keep(kept(tensors(64), 0.5));
    EXPECT_EQ(declared.take(tensors(64), {}), nullptr);
    EXPECT_EQ(declared.take(tensors(64), -0.5), nullptr);
    EXPECT_NE(declared.take(tensors(64), 0.5), nullptr);
}

TEST(KeptCalls, AreFew) {
    constexpr std::int64_t kShapes = 100;
    DeclaredCall declared = gla();
    for (std::int64_t tokens = 1; tokens <= kShapes; ++tokens) {
        declared.keep(kept(tensors(tokens)));
    }
    int found = 0;
    for (std::int64_t tokens = kShapes; tokens > 0; --tokens) {
        found += declared.take(tensors(tokens), {}) != nullptr ? 1 : 0;
    }
    EXPECT_GE(found, 4) << "shapes that alternate";
    EXPECT_LE(found, 16);
}

TEST(KeptCalls, BelongToOneThreadAtATime) {
    constexpr int kThreads = 4, kCalls = 5000;
    DeclaredCall declared = gla();
    std::atomic<int> wrong = 0;
    const auto work = [&](int thread) {
        for (int i = 0; i < kCalls; ++i) {
            const auto views = tensors(1 + (i + thread) % 3, (1 << 20) + (thread << 26));
            std::unique_ptr<BoundCall> call = declared.take(views, {});
            if (call == nullptr) call = kept(views);
            // Another thread that had it too would overwrite the threads' mark.
            call->options.threads = thread;
            if (call->views[0].extents != views[0].extents) ++wrong;
            std::this_thread::yield();
            if (call->options.threads != thread) ++wrong;
            declared.keep(std::move(call));
        }
    };
    std::vector<std::thread> threads;
    for (int thread = 0; thread < kThreads; ++thread) threads.emplace_back(work, thread);
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0);
}

TEST(Tensors, OfAStateInPlaceAreReadAndWritten) {
    const DeclaredCall declared(
        "phase=decode;variant=gla;tensor=v;tensor=q;tensor=k;tensor=g;tensor=state;tensor=slots;"
        "tensor=out");
    std::vector<TensorView> views = tensors(1);
    views.push_back(at(1 << 26, DType::kInt32, {1}));
    views.push_back(at(1 << 27, DType::kBFloat16, {1, 1, 2, 64}));
    Arguments arguments = declared.arguments(views);
    const StateArguments& s = arguments.state;
    EXPECT_EQ(arguments.inputs[0].first, "v");
    EXPECT_EQ(arguments.inputs[0].second.data, views[0].data);
    EXPECT_EQ(s.initial->data, views[4].data);
    EXPECT_EQ(s.final->data, views[4].data);
    EXPECT_EQ(s.read_slots->data, views[5].data);
    EXPECT_EQ(s.write_slots->data, views[5].data);
    EXPECT_EQ(arguments.o.data, views[6].data);
    for (TensorView& view : views) view.data = static_cast<char*>(view.data) + 256;
    declared.replace(arguments, views);
    EXPECT_EQ(arguments.inputs[3].second.data, views[3].data);
    EXPECT_EQ(s.initial->data, views[4].data);
    EXPECT_EQ(s.write_slots->data, views[5].data);
    EXPECT_EQ(arguments.o.data, views[6].data);
}

}  // namespace
}  // namespace sluice::python
