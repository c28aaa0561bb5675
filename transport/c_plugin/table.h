#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "gradrail/transport.h"

namespace gradrail::transport::c_plugin {

/// An empty text. Its other bytes are not initialized: each call of the data path uses one.
struct Text : gradrail_transport_text {
  Text() { text[0] = '\0'; }
};

/// The functions of a plug-in, and the errors that name it.
/// Threads  Any; constant.
class Table {
 public:
  /// Copies the table of version 1; functions that an older plug-in lacks are null.
  /// Errors  FAILED_PRECONDITION: too small, or without a required function; names the file and the remedy.
  static absl::StatusOr<Table> read(std::string_view name, std::string_view file,
                                    const gradrail_transport_table& table);

  const gradrail_transport_table* operator->() const { return &table_; }
  const std::string& name() const { return name_; }
  std::string library() const;

  /// The result of a call as a Status: the code, and the text behind the name of the transport. An unknown code or a
  /// missing text is stated as a defect of the plug-in.
  absl::Status status(std::string_view call, int code, const gradrail_transport_text& error) const;
  absl::Status status(std::string_view call, int code, std::string_view error) const;

  /// INTERNAL: the plug-in has broken the contract. Names the file.
  absl::Status defect(std::string_view text) const;

 private:
  std::string name_;
  std::string file_;
  gradrail_transport_table table_{};
};

/// A text of a plug-in, up to its NUL or the end of the buffer. Characters that are not printable become '?': terminals
/// and messages that must be UTF-8 contain the text.
std::string printable(const gradrail_transport_text& text);
std::string printable(std::string_view text);

}  // namespace gradrail::transport::c_plugin
