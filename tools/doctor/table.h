#pragma once

#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "tools/doctor/check.h"
#include "tools/doctor/facts/facts.h"

namespace gradrail::tools::doctor {

/// A judgement. A {name} in a text is replaced by the fact of that name.
struct Row {
  std::function<bool(const Facts&)> applies;
  State state = State::ok;
  std::string evidence;     ///< observed value and its source
  std::string consequence;  ///< "" when ok
  std::string remedy;       ///< a command or a setting; "" when ok
};

/// Rows for an object: the first row that applies gives the finding. An object without such a row gives none.
struct Look {
  std::variant<Facts Machine::*, std::vector<Facts> Machine::*> objects;
  std::vector<Row> rows;
};

struct CheckTable {
  std::string topic;
  std::string name;  ///< equal in all versions: programs use it
  std::vector<Look> looks;
  /// Whether another way makes up for what is broken here: it is a warning then. Null: none does.
  std::function<bool(const Machine&)> excused = nullptr;
};

/// Tables of checks in the order of the report.
const std::vector<CheckTable>& check_tables();

Check judge(const CheckTable& table, const Machine& machine);

}  // namespace gradrail::tools::doctor
