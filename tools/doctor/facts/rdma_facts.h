#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/doctor/system.h"

namespace gradrail::tools::doctor {

struct Gid {
  int index = 0;
  std::string text;       ///< "fe80:0000:…", eight groups of four
  std::string type;       ///< "IB/RoCE v1", "RoCE v2"
  std::string interface;  ///< of the network it belongs to
};

struct RdmaPort {
  std::string folder;  ///< /sys/class/infiniband/mlx5_0/ports/1
  std::string name;    ///< "mlx5_0 port 1"
  int number = 1;
  std::string state;       ///< "4: ACTIVE"
  std::string phys_state;  ///< "5: LinkUp"
  std::string rate;        ///< "400 Gb/sec (4X NDR)"
  std::string link_layer;  ///< "InfiniBand", "Ethernet"
  std::vector<Gid> gids;   ///< those in use

  bool is_active() const { return state.substr(0, 1) == "4"; }
  bool is_ethernet() const { return link_layer == "Ethernet"; }
  /// The interface of the first GID that names one; "" on InfiniBand without IPoIB.
  std::string interface() const;
};

struct RdmaDevice {
  std::string name;
  std::string folder;
  std::string pci_address;  ///< "" when it is on no bus: soft-RoCE
  std::string driver;       ///< "mlx5_core", "rdma_rxe"
  std::string uverbs;       ///< "uverbs0"; "": no user can open it
  std::vector<RdmaPort> ports;
};

std::vector<RdmaDevice> read_rdma_devices(Tree& tree);

/// The name in rdma-core for this driver: "mlx5" for mlx5_core. "": not known here.
std::string provider_of(const RdmaDevice& device);

/// An address of an interface of this host.
struct InterfaceAddress {
  std::string interface;
  std::string address;  ///< numeric
};

/// Errors  as System::observe.
absl::StatusOr<std::vector<InterfaceAddress>> interface_addresses(System& system);

/// The IP address that a RoCE v2 GID stands for, as inet_ntop writes it; "" when it is no GID.
std::string address_of_gid(const std::string& gid);

}  // namespace gradrail::tools::doctor
