#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace gradrail::topology {

struct XmlAttribute {
  std::string_view name;
  std::string value;  ///< entities resolved
};

/// One tag of an XML text.
struct XmlTag {
  enum class Kind { open, close, empty };  ///< <a>, </a>, <a/>
  Kind kind = Kind::open;
  std::string_view name;
  std::vector<XmlAttribute> attributes;

  const std::string* find(std::string_view attribute) const;
};

/// Iterates over the tags of an XML text. Text between tags, comments and processing instructions are skipped. A
/// document type with declarations of its own is refused, and with it every entity except the five of XML.
class XmlReader {
 public:
  explicit XmlReader(std::string_view text) : text_(text), rest_(text) {}

  /// nullopt: the end of the text.
  /// Errors  INVALID_ARGUMENT.
  absl::StatusOr<std::optional<XmlTag>> next();

  int line() const;
  absl::Status error(const std::string& cause) const;

 private:
  absl::StatusOr<bool> skip_no_tag();
  absl::Status skip_past(std::string_view begin, std::string_view end);
  absl::Status skip_document_type();
  absl::Status read_attributes(XmlTag& tag);
  absl::StatusOr<XmlAttribute> read_attribute();
  absl::StatusOr<std::string> resolve(std::string_view raw) const;
  std::string_view read_name();
  void skip_space();

  std::string_view text_, rest_;
};

}  // namespace gradrail::topology
