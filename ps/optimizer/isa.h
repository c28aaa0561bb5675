#pragma once

#include <cstdint>
#include <string_view>

#include "absl/types/span.h"
#include "ps/optimizer/kernel.h"
#include "ps/optimizer/optimizer.h"

namespace gradrail::ps {

/// Instruction sets for which apply() is compiled, weakest first.
enum class Isa : uint8_t { generic, avx2, avx512 };

std::string_view isa_name(Isa isa);

/// The sets in this build that this processor and kernel can run, weakest first; never empty.
absl::Span<const Isa> supported_isas();

/// The strongest of `supported`, or the one with the name `forced` (nullptr or "": none). A name that is not supported
/// is logged and ignored: a job on mixed hosts must run on all of them.
Isa choose_isa(const char* forced, absl::Span<const Isa> supported);

/// The one that apply_isa() names.
Isa chosen_isa();

/// `isa` must be one of supported_isas().
const KernelTable& kernels(Isa isa);

/// Whether this update of a bucket is one of the momentum of delayed_nesterov. The others only collect gradients.
bool updates_momentum(const OptimizerConfig& config, uint64_t update_index);

/// The arguments of a kernel for one apply(), the same for all instruction sets.
KernelArguments kernel_arguments(const OptimizerConfig& config, const ApplyArguments& arguments);

/// apply() with a given instruction set, for tests and benchmarks.
bool apply_with(Isa isa, const OptimizerConfig& config, const ApplyArguments& arguments);
/// pack() with a given instruction set.
void pack_with(Isa isa, PushFormat format, absl::Span<const float> gradient, float* rest, void* packed);

}  // namespace gradrail::ps
