#pragma once

#include <cstdio>
#include <cstdlib>

/// Stops the process when an invariant is broken. On in every build; innermost loops use assert instead.
#define GRADRAIL_CHECK(condition)                                                                        \
  do {                                                                                                   \
    if (!(condition)) [[unlikely]] {                                                                     \
      std::fprintf(stderr, "gradrail: broken invariant: %s at %s:%d\n", #condition, __FILE__, __LINE__); \
      std::abort();                                                                                      \
    }                                                                                                    \
  } while (false)
