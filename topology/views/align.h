#pragma once

#include <string>
#include <vector>

namespace gradrail::topology {

/// Rows of ASCII cells as lines, each column as wide as its widest cell, two spaces between.
/// Columns count bytes, therefore ASCII. Each line ends in \n and has no trailing spaces.
std::string align_columns(const std::vector<std::vector<std::string>>& rows);

}  // namespace gradrail::topology
