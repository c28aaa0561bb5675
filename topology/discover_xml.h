#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace gradrail::topology {

/// Reads the text of an XML file of hwloc (either version) with a reader of our own, and writes what counts of it anew:
/// objects, infos and kinds of cpus, without document type, entities, comments and what else XML has.
/// Why not hand the text to hwloc as it is: its two XML backends differ in what they take, and its import trusts what
/// it reads (it stops the process on contradictions between objects). What gets past here is a tree of known objects
/// whose sets of cpus fit into each other. Errors  INVALID_ARGUMENT with line, cause and what would be right.
absl::StatusOr<std::string> check_xml(const std::string& text);

}  // namespace gradrail::topology
