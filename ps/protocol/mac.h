#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "ps/protocol/security.h"
#include "transport/registry.h"

namespace gradrail::ps {

/// HMAC-SHA256 over `parts`, each preceded by its length so that different cuts give different results: 32 bytes.
std::string mac_of(std::string_view key, std::initializer_list<std::string_view> parts);
/// Compares in constant time: the duration does not reveal the first difference.
bool same_bytes(std::string_view a, std::string_view b);

/// Random bytes that admit the data connections of the member that receives them.
std::string new_token();
/// Key that a member's data connections are proven by. Without a secret it is the token of JoinReply, which only TLS
/// hides. With a secret only a task that has the secret can compute it from the token.
inline std::string data_key(const std::string& secret, const std::string& token) {
  return secret.empty() ? token : mac_of(secret, {"data", token});
}

/// Settings of the transports for `--encrypt-data`; absent without the flag.
std::optional<transport::Encryption> data_encryption(const Security& security);

}  // namespace gradrail::ps
