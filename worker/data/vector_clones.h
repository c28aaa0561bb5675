#pragma once

// Compiles one loop for several instruction sets and picks at load time. One binary then runs on every x86-64 host
// and still fills the wide registers. Elsewhere, and under sanitizers (their run time is not up yet when the choice is
// made), the plain loop is all there is.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__) && \
    !defined(__SANITIZE_ADDRESS__)
#define GRADRAIL_VECTOR_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define GRADRAIL_VECTOR_CLONES
#endif
