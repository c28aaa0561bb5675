#include "ps/optimizer/returns.h"

namespace gradrail::ps {

void round_to_bf16_with(Isa isa, absl::Span<const float> values, uint16_t* rounded) {
  kernels(isa).round(values.data(), rounded, values.size());
}

void widen_bf16_with(Isa isa, const uint16_t* rounded, absl::Span<float> values) {
  kernels(isa).widen(rounded, values.data(), values.size());
}

void stamp_changes_with(Isa isa, absl::Span<const float> values, uint16_t number, uint16_t* held, uint16_t* stamps) {
  kernels(isa).stamp_changes(values.data(), number, held, stamps, values.size());
}

size_t pack_delta_with(Isa isa, absl::Span<const uint16_t> held, const uint16_t* stamps, uint16_t base, void* packed) {
  return kernels(isa).pack_delta(held.data(), stamps, base, packed, held.size());
}

void unpack_delta_with(Isa isa, const void* packed, uint16_t* held, absl::Span<float> values) {
  kernels(isa).unpack_delta(packed, held, values.data(), values.size());
}

void round_to_bf16(absl::Span<const float> values, uint16_t* rounded) {
  round_to_bf16_with(chosen_isa(), values, rounded);
}

void widen_bf16(const uint16_t* rounded, absl::Span<float> values) { widen_bf16_with(chosen_isa(), rounded, values); }

void stamp_changes(absl::Span<const float> values, uint16_t number, uint16_t* held, uint16_t* stamps) {
  stamp_changes_with(chosen_isa(), values, number, held, stamps);
}

size_t pack_delta(absl::Span<const uint16_t> held, const uint16_t* stamps, uint16_t base, void* packed) {
  return pack_delta_with(chosen_isa(), held, stamps, base, packed);
}

void unpack_delta(const void* packed, uint16_t* held, absl::Span<float> values) {
  unpack_delta_with(chosen_isa(), packed, held, values);
}

}  // namespace gradrail::ps
