#pragma once

#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>

#include "absl/status/status.h"

namespace gradrail {

/// RESOURCE_EXHAUSTED with what was done, the memory of this process, the limit that it has reached, and the remedy.
/// Allocates little.
absl::Status out_of_memory(std::string_view doing);

/// The error of a library's exception: out_of_memory(), or RESOURCE_EXHAUSTED for a thread that the kernel has refused.
/// Other exceptions are INTERNAL. To be called in a catch block.
absl::Status status_of_exception(std::string_view doing);

/// The result of `function`, which returns a status or a StatusOr. The standard library reports memory and threads that
/// it did not get by exceptions only.
template <typename Function>
auto without_exceptions(std::string_view doing, Function function) -> decltype(function()) {
  try {
    return function();
  } catch (const std::exception&) {
    return status_of_exception(doing);
  }
}

/// Makes a library that aborts without memory, and an exception that ends a thread, print a line on stderr and use this
/// exit code; for main(). gRPC aborts without a message when malloc() or a thread is refused.
void explain_aborts(int exit_code);

}  // namespace gradrail
