#pragma once

#include <type_traits>

namespace gradrail::gpu {

/// True if a call passes two types in the same way. These are equal types, an enumeration and its integer, pointers to
/// such types, and plain structures of one size.
template <typename Ours, typename Theirs>
constexpr bool same_for_a_call();

template <typename Ours, typename Theirs>
struct SameFunction : std::false_type {};
template <typename OurResult, typename... Ours, typename TheirResult, typename... Theirs>
requires(sizeof...(Ours) == sizeof...(Theirs)) struct SameFunction<OurResult(Ours...), TheirResult(Theirs...)>
    : std::bool_constant<same_for_a_call<OurResult, TheirResult>() && (same_for_a_call<Ours, Theirs>() && ...)> {
};

template <typename Ours, typename Theirs>
constexpr bool same_for_a_call() {
  if constexpr (std::is_same_v<Ours, Theirs>) {
    return true;
  } else if constexpr (std::is_function_v<Ours> && std::is_function_v<Theirs>) {
    return SameFunction<Ours, Theirs>::value;
  } else if constexpr (std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>) {
    using OurTarget = std::remove_pointer_t<Ours>;
    using TheirTarget = std::remove_pointer_t<Theirs>;
    return std::is_const_v<OurTarget> == std::is_const_v<TheirTarget> &&
           same_for_a_call<std::remove_const_t<OurTarget>, std::remove_const_t<TheirTarget>>();
  } else if constexpr (std::is_enum_v<Theirs>) {
    return std::is_integral_v<Ours> && sizeof(Ours) == sizeof(Theirs);
  } else if constexpr (std::is_class_v<Ours> && std::is_class_v<Theirs>) {
    return sizeof(Ours) == sizeof(Theirs) && std::is_trivially_copyable_v<Ours>;
  } else {
    return false;
  }
}

static_assert(same_for_a_call<int*, int*>() && !same_for_a_call<int, unsigned>());
static_assert(!same_for_a_call<int (*)(int), int (*)(long)>() && !same_for_a_call<int (*)(int), int (*)(int, int)>());

}  // namespace gradrail::gpu
