#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/topology/synthetic_machines.h"
#include "topology/discover/discover.h"

namespace gradrail::topology {
namespace {

using testing::HasSubstr;

class DiscoverFiles : public testing::Test {
 protected:
  DiscoverFiles() : folder_(testing::TempDir() + "discover_files_" + std::to_string(getpid())) {
    std::filesystem::create_directories(folder_);
  }
  ~DiscoverFiles() override { std::filesystem::remove_all(folder_); }

  std::string write(const std::string& text) const {
    const std::string path = folder_ + "/machine.xml";
    std::ofstream(path) << text;
    return path;
  }

  const std::string folder_;
};

void expect_refused(const absl::StatusOr<Machine>& machine, absl::StatusCode code, const std::string& words) {
  ASSERT_FALSE(machine.ok());
  EXPECT_EQ(machine.status().code(), code) << machine.status();
  EXPECT_THAT(std::string(machine.status().message()), HasSubstr(words));
}

void expect_invalid(const std::string& xml, const std::string& words) {
  expect_refused(from_xml(xml, "bad.xml"), absl::StatusCode::kInvalidArgument, words);
  expect_refused(from_xml(xml, "bad.xml"), absl::StatusCode::kInvalidArgument, "bad.xml");
}

std::string replaced(std::string text, const std::string& what, const std::string& with) {
  const size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return text.replace(at, what.size(), with);
}

TEST_F(DiscoverFiles, AFileIsRead) {
  const std::string path = write(two_socket_text());
  const absl::StatusOr<Machine> machine = load(path);
  ASSERT_TRUE(machine.ok()) << machine.status();
  EXPECT_EQ(machine->source, path);
  EXPECT_EQ(machine->gpus.size(), 2u);
}

TEST_F(DiscoverFiles, WhatIsNoFile) {
  expect_refused(load(folder_ + "/none.xml"), absl::StatusCode::kNotFound, "none.xml");
  expect_refused(load(folder_), absl::StatusCode::kInvalidArgument, "not a regular file");
  expect_refused(load("nonsense"), absl::StatusCode::kInvalidArgument, "no synthetic description");
  expect_refused(load(""), absl::StatusCode::kInvalidArgument, "no synthetic description");
}

TEST_F(DiscoverFiles, APipeDoesNotBlock) {
  const std::string path = folder_ + "/pipe.xml";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  expect_refused(load(path), absl::StatusCode::kInvalidArgument, "not a regular file");
}

TEST_F(DiscoverFiles, AHugeFileIsNotRead) {
  const std::string path = write("x");
  std::filesystem::resize_file(path, size_t{65} << 20);
  expect_refused(load(path), absl::StatusCode::kInvalidArgument, "longer than 67108864 bytes");
}

TEST_F(DiscoverFiles, HugeDescriptionsAreNotBuilt) {
  for (const char* text : {"pack:1000 core:100000", "4000000000", "pack:99999999999999999999 core:2", "0xffffff",
                           "2[numa]99999", "2(memory=1GB)99999", "pack:2 [numa(memory=1GB)]core:99999 pu:1"})
    expect_refused(from_synthetic(text), absl::StatusCode::kInvalidArgument, "16384 cpus");
}

TEST_F(DiscoverFiles, LevelsHaveTypesOrNoneHas) {
  for (const char* text : {"pack:2 5core:4 pu:2(indexes=2*8:8*2)", "pack:2 [numa]5 pu:2", "2 core:4"})
    expect_refused(from_synthetic(text), absl::StatusCode::kInvalidArgument, "all levels have a type or none");
  EXPECT_TRUE(from_synthetic("2[numa]3 4").ok());
}

TEST_F(DiscoverFiles, EnvironmentStandsInForTheMachine) {
  const std::string path = write(two_socket_text());
  setenv("HWLOC_XMLFILE", path.c_str(), 1);
  const absl::StatusOr<Machine> from_file = discover();
  setenv("HWLOC_XMLFILE", (folder_ + "/none.xml").c_str(), 1);
  expect_refused(discover(), absl::StatusCode::kNotFound, "none.xml");
  unsetenv("HWLOC_XMLFILE");
  setenv("HWLOC_SYNTHETIC", "core:3 pu:1", 1);
  const absl::StatusOr<Machine> described = discover();
  unsetenv("HWLOC_SYNTHETIC");
  ASSERT_TRUE(from_file.ok() && described.ok()) << from_file.status() << described.status();
  EXPECT_EQ(from_file->gpus.size(), 2u);
  EXPECT_FALSE(from_file->live);
  EXPECT_EQ(described->cores.size(), 3u);
  EXPECT_FALSE(described->live);
}

TEST(HostileXml, IsRefusedWithItsCauseAndRemedy) {
  const std::string good = two_socket_text(2);
  for (const std::string& text :
       {std::string(), std::string("hello"), std::string("<html></html>"), good.substr(0, good.size() / 2),
        good + "<topology/>", replaced(good, "</object>", "</info>"),
        replaced(good, "os_index=\"0\"", "os_index=\"&bomb;\"")})
    expect_invalid(text, "save it again with lstopo");
  expect_invalid(replaced(good, "version=\"2.0\"", "version=\"3.0\""), "lstopo --export-xml-flags 2 FILE.xml");
  expect_invalid(replaced(good, "type=\"Core\"", "type=\"Engine\""), "Engine");
  std::string deep = "<topology>";
  for (int i = 0; i < 100'000; ++i) deep += "<a>";
  expect_invalid(deep, "save it again");
}

TEST(OtherFiles, AreNamedForWhatTheyAre) {
  for (const auto& [text, words] : std::vector<std::pair<std::string, std::string>>{
           {"<system version=\"1\"><cpu numaid=\"0\" arch=\"x86_64\"/></system>", "it is a topology of NCCL or RCCL"},
           {"<?xml version=\"1.0\"?>\n<!-- <topology> of two hosts -->\n<system version=\"2\"/>",
            "it is a topology of NCCL or RCCL"},
           {"<graphs version=\"1\"><graph id=\"0\"/></graphs>", "it is a graph of NCCL or RCCL"},
           {"<!DOCTYPE topologydiff SYSTEM \"hwloc2-diff.dtd\"><topologydiff/>",
            "it is a difference of two topologies"},
           {"\xef\xbb\xbf<svg width=\"10\"/>", "its root element is <svg>, that of hwloc is <topology>"},
           {"<topologies/>", "its root element is <topologies>"},
           {"", "the file is empty"},
           {" \n", "the file is empty"},
           {"{\"cores\": []}", "it looks like JSON"},
           {"Package:2 [NUMANode] Core:4 PU:2\n", "\"$(cat FILE)\""},
           {"Machine (23GB total)\n  Package L#0\n", "it is no XML"},
           {"<", "it is no XML"},
           {"<!-- <topology>", "it is no XML"},
           {std::string("\x7f"
                        "ELF\0\0",
                        6),
            "it is no XML"}}) {
    expect_invalid(text, words);
    expect_invalid(text, words.find("cat") == std::string::npos ? "save it again with lstopo FILE.xml" : "and no XML");
  }
}

/// hwloc's import trusts what it reads: the first two end in a null pointer, others in levels or sets that disagree.
TEST(HostileXml, ContradictionsAreRefused) {
  const std::string good = two_socket_text(2);
  expect_invalid(replaced(good, "complete_cpuset", "complete_cpu"), "hwloc crashed");
  expect_invalid(replaced(good, "complete_nodeset", "complete_node"), "hwloc crashed");
  expect_invalid(replaced(good, "type=\"Core\"", "type=\"Package\""), "packages stand on different levels");
  expect_invalid(replaced(good, "\"PU\" os_index=\"0\"", "\"PU\" os_index=\"3\""), "contradict each other");
  expect_invalid(replaced(good, "\"NUMANode\" os_index=\"1\"", "\"NUMANode\" os_index=\"0\""), "contradict each other");
  expect_invalid(replaced(good, "\"PU\" os_index=\"0\"", "\"PU\" os_index=\"70000\""), "contradict each other");
}

}  // namespace
}  // namespace gradrail::topology
