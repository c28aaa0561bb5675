#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace gradrail::topology {

/// Reads the text of an hwloc XML file (either version) with a reader of our own and writes the relevant part again.
/// The result has objects, infos and kinds of cpus, but no document type, entities, comments or other features of XML.
/// hwloc does not get the original text because its two XML backends accept different texts. Its import also trusts the
/// text and stops the process when objects contradict each other. The result here is a tree of known objects with
/// consistent cpu sets.
/// Errors  INVALID_ARGUMENT with line, cause and remedy.
absl::StatusOr<std::string> check_xml(const std::string& text);

}  // namespace gradrail::topology
