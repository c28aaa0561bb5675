#pragma once

#include <gtest/gtest.h>

#include <string>

#include "fmt/format.h"

namespace gradrail::gpu {

/// Prints a line of the record of this machine. tools/dev/first_contact collects these lines.
inline void report_fact(const std::string& fact, const std::string& value) {
  ::testing::Test::RecordProperty(fact, value);
  fmt::print("fact: {} = {}\n", fact, value);
}

}  // namespace gradrail::gpu
