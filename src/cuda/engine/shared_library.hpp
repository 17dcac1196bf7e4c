// A shared library opened at run time. Never closed: drivers and compilers leave exit handlers
// behind.
#pragma once

#include <dlfcn.h>

#include <string>

namespace sluice::cuda {

class SharedLibrary {
  public:
    /// A name that the loader searches for, or a path.
    explicit SharedLibrary(const std::string& name)
        : handle_(dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
        if (handle_ == nullptr) problem_ = dlerror();
    }

    /// Sets `function` to the address of `symbol`, or to null.
    template <class F>
    void bind(F*& function, const char* symbol) {
        function = handle_ == nullptr ? nullptr : reinterpret_cast<F*>(dlsym(handle_, symbol));
        if (function == nullptr && problem_.empty()) problem_ = std::string("no ") + symbol;
    }

    /// Why the library could not be opened, or the first symbol that it lacks; empty: all is there.
    [[nodiscard]] const std::string& problem() const noexcept { return problem_; }

  private:
    void* handle_;
    std::string problem_;
};

}  // namespace sluice::cuda
