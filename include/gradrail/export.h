#pragma once

/// Marks a class or function that libgradrail.so exports. All other symbols of our sources are hidden.
#define GRADRAIL_EXPORT __attribute__((visibility("default")))
/// Marks a private part of an exported class.
#define GRADRAIL_HIDDEN __attribute__((visibility("hidden")))
