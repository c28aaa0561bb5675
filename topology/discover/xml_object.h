#pragma once

#include <string>
#include <string_view>

#include "topology/cpu_set.h"
#include "topology/discover/xml_reader.h"

namespace gradrail::topology {

/// The kind of an object of hwloc's XML and the kinds that it may contain.
enum class XmlKind { normal, cpu, memory, io, misc };

/// An object on the way from the root to the one we are at.
struct XmlObject {
  std::string type;
  XmlKind kind = XmlKind::normal;
  uint32_t types = 0;  ///< a bit for its type and for each that must not occur again below it
  CpuSet cpus;
  CpuSet complete_cpus;  ///< with those that are offline: by these hwloc sorts
  CpuSet nodes, complete_nodes;
  CpuSet taken;         ///< complete cpus of its children so far: no two may share any
  int last_first = -1;  ///< the first complete cpu of its latest child
};

/// Attributes that hwloc receives; others are dropped.
bool is_known_attribute(std::string_view name);

/// Checks an object alone: its type, its sets, its numbers. The status says what is wrong, without a line.
/// Version 1 of the format has memory among the other objects, with what is near it below it; version 2 beside them.
absl::StatusOr<XmlObject> check_object(const XmlTag& tag, bool version_1);

/// Checks that it may hang where it does (`parent` null: at the root), and takes its cpus from the parent's.
absl::Status check_place(XmlObject& object, XmlObject* parent);

/// hwloc's way to write a set: "0x000000ff,,0xffffffff". Infinite ones ("0xf...f") belong into no file.
absl::StatusOr<CpuSet> parse_bitmap(std::string_view text);

}  // namespace gradrail::topology
