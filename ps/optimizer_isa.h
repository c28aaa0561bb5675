#pragma once

#include <cstdint>
#include <string_view>

#include "absl/types/span.h"
#include "ps/optimizer.h"
#include "ps/optimizer_kernel.h"

namespace gradrail::ps {

/// Instruction sets that apply() is compiled for, weakest first.
enum class Isa : uint8_t { generic, avx2, avx512 };

std::string_view isa_name(Isa isa);

/// What this build holds and this processor and kernel can run, weakest first; never empty.
absl::Span<const Isa> supported_isas();

/// The strongest of `supported`, or the one that `forced` names (nullptr or "": none). A name that cannot be obeyed is
/// logged and ignored: a job started on mixed hosts must run on all of them.
Isa choose_isa(const char* forced, absl::Span<const Isa> supported);

/// `isa` must be one of supported_isas().
const KernelTable& kernels(Isa isa);

/// What apply() hands to a kernel, of whatever processor.
KernelArguments kernel_arguments(const OptimizerConfig& config, const ApplyArguments& arguments);

/// apply() with a given instruction set, for tests and benchmarks.
void apply_with(Isa isa, const OptimizerConfig& config, const ApplyArguments& arguments);

}  // namespace gradrail::ps
