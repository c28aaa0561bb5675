#pragma once

#include <ucp/api/ucp.h>

#include <string>
#include <string_view>

namespace gradrail::transport::ucx {

/// The transports that carry an endpoint's bytes. UCX 1.13 has only a text for people (ucp_ep_print_info), which is
/// parsed here.
struct Lanes {
  std::string text;   ///< text for people: "rc_verbs/rxe0:1", "posix/memory + cma/memory"
  bool rdma = false;  ///< all lanes that carry messages or bulk are an RDMA device's
};

Lanes lanes_of(ucp_ep_h endpoint);

/// Parses the text of ucp_ep_print_info.
Lanes parse_lanes(std::string_view text);

/// Whether any transport of an RDMA device is in use by this UCX context; `names` gets all that are, for people.
bool has_rdma_resource(ucp_context_h context, std::string* names);

/// Parses the text of ucp_context_print_info.
bool parse_resources(std::string_view text, std::string* names);

}  // namespace gradrail::transport::ucx
