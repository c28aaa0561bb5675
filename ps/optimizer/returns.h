#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "ps/optimizer/isa.h"

namespace gradrail::ps {

// Parameters on their way back to a worker (ps/protocol/return_format.h draws the bytes). All instruction sets give the
// same bits; buffers may not overlap.

/// The upper half of each value, rounded to nearest even. Infinity stays; each NaN becomes 0x7fc0.
/// Shapes   rounded: [values.size()].
void round_to_bf16(absl::Span<const float> values, uint16_t* rounded);
void widen_bf16(const uint16_t* rounded, absl::Span<float> values);

/// Makes `held` equal to the values, rounded to bf16. The elements of `held` that this changes get the stamp `number`.
/// Shapes   held, stamps: [values.size()].
void stamp_changes(absl::Span<const float> values, uint16_t number, uint16_t* held, uint16_t* stamps);

/// Writes the elements with a stamp above `base` as a delta. Returns its bytes; 0 where it has as many as the whole
/// bucket, and `packed` is then undefined.
/// Shapes   stamps: [held.size()]; packed: whole_return_bytes(held.size()).
size_t pack_delta(absl::Span<const uint16_t> held, const uint16_t* stamps, uint16_t base, void* packed);

/// Changes `held` as a delta states, and widens it to `values`. For any bytes it writes within both.
/// Shapes   held: [values.size()]; packed: masks and room for all elements, and 64 bytes more, which may be read.
void unpack_delta(const void* packed, uint16_t* held, absl::Span<float> values);

/// Variants of the functions above with a given instruction set.
void round_to_bf16_with(Isa isa, absl::Span<const float> values, uint16_t* rounded);
void widen_bf16_with(Isa isa, const uint16_t* rounded, absl::Span<float> values);
void stamp_changes_with(Isa isa, absl::Span<const float> values, uint16_t number, uint16_t* held, uint16_t* stamps);
size_t pack_delta_with(Isa isa, absl::Span<const uint16_t> held, const uint16_t* stamps, uint16_t base, void* packed);
void unpack_delta_with(Isa isa, const void* packed, uint16_t* held, absl::Span<float> values);

}  // namespace gradrail::ps
