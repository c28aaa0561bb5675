# What `cmake --install` puts where: the program, the libraries, their headers in the folders that the sources include
# them by, the MNIST data, and a description of it all for CMake and for pkg-config.
include(CMakePackageConfigHelpers)

set(GRADRAIL_INSTALL_CMAKE ${CMAKE_INSTALL_LIBDIR}/cmake/gradrail)
set(GRADRAIL_INSTALL_INCLUDE ${CMAKE_INSTALL_INCLUDEDIR}/gradrail)

# Each third-party target that a library of ours may link: the CMake package and the pkg-config module it comes from, or a
# bare linker flag for what has no module. A target that is not here fails the configuration, not somebody else's link.
set(GRADRAIL_THIRD_PARTIES
    "^absl::(.+)$|absl|absl_\\1"
    "^fmt::fmt$|fmt|fmt"
    "^spdlog::spdlog$|spdlog|spdlog"
    "^gRPC::(.+)$|gRPC|\\1"
    "^protobuf::libprotobuf$|Protobuf|protobuf"
    "^ZLIB::ZLIB$|ZLIB|zlib"
    "^OpenSSL::SSL$|OpenSSL|libssl"
    "^OpenSSL::Crypto$|OpenSSL|libcrypto"
    "^CLI11::CLI11$|CLI11|CLI11"
    "^nlohmann_json::nlohmann_json$|nlohmann_json|nlohmann_json"
    "^PkgConfig::hwloc$|PkgConfig|hwloc"
    "^Threads::Threads$|Threads|-pthread"
    "^(rt|dl|m|pthread)$||-l\\1")

# gradrail_third_party(<target> <package variable> <module variable>)
function(gradrail_third_party target package module)
  foreach(entry IN LISTS GRADRAIL_THIRD_PARTIES)
    # The pattern itself may hold a bar, so the two words are split off from the end.
    string(REGEX MATCH "^(.*)\\|([^|]*)\\|([^|]*)$" _ "${entry}")
    set(pattern "${CMAKE_MATCH_1}")
    set(package_of "${CMAKE_MATCH_2}")
    set(module_of "${CMAKE_MATCH_3}")
    if(target MATCHES "${pattern}")
      string(REGEX REPLACE "${pattern}" "${module_of}" module_of "${target}")
      set(${package} "${package_of}" PARENT_SCOPE)
      set(${module} "${module_of}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
  message(FATAL_ERROR "a library links ${target}: name its package and module in tools/cmake/gradrail_install.cmake")
endfunction()

# Walks what our libraries link and leaves packages (for find_dependency) and modules (for pkg-config) in the caller.
function(gradrail_collect_third_parties libraries)
  set(packages "")
  set(modules "")
  set(flags "")
  foreach(library IN LISTS libraries)
    get_target_property(linked ${library} LINK_LIBRARIES)
    foreach(target IN LISTS linked)
      string(REGEX REPLACE "^\\$<LINK_ONLY:(.*)>$" "\\1" target "${target}")
      if(target MATCHES "^(gradrail|::@)" OR target MATCHES "^\\$<BUILD_INTERFACE:" OR target STREQUAL "linked-NOTFOUND")
        continue()
      endif()
      gradrail_third_party("${target}" package module)
      list(APPEND packages ${package})
      if(module MATCHES "^-")
        list(APPEND flags ${module})
      else()
        list(APPEND modules ${module})
      endif()
    endforeach()
    if("gradrail_dnnl" IN_LIST linked)
      list(APPEND flags -ldnnl) # Debian ships no module for it
    endif()
  endforeach()
  foreach(list packages modules flags)
    list(REMOVE_DUPLICATES ${list})
    set(GRADRAIL_${list} "${${list}}" PARENT_SCOPE)
  endforeach()
endfunction()

function(gradrail_install_libraries libraries)
  # gradrail_dnnl is ours only in name, but the exported worker refers to it.
  install(TARGETS ${libraries} gradrail_dnnl EXPORT gradrail_targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(EXPORT gradrail_targets NAMESPACE gradrail:: FILE gradrailTargets.cmake DESTINATION ${GRADRAIL_INSTALL_CMAKE})
  foreach(folder base topology transport gpu ps worker)
    # A folder below transport is one implementation: users name transports by their words, never by these headers.
    file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/${folder}/*.h)
    list(FILTER headers EXCLUDE REGEX "^transport/[^/]+/|/examples/|^gpu/(kernels/|host_compute_|device_operations_)|^ps/optimizer_(isa|kernel)|^topology/(discover|plan)_")
    foreach(header IN LISTS headers)
      get_filename_component(where ${header} DIRECTORY)
      install(FILES ${header} DESTINATION ${GRADRAIL_INSTALL_INCLUDE}/${where})
    endforeach()
  endforeach()
  # The headers of the server and of the worker's control link mention the generated messages.
  install(DIRECTORY ${PROJECT_BINARY_DIR}/ps DESTINATION ${GRADRAIL_INSTALL_INCLUDE} FILES_MATCHING PATTERN "*.pb.h"
          PATTERN CMakeFiles EXCLUDE)
endfunction()

function(gradrail_install_descriptions libraries)
  list(TRANSFORM GRADRAIL_packages REPLACE "^(.+)$" "find_dependency(\\1)" OUTPUT_VARIABLE GRADRAIL_FIND_DEPENDENCIES)
  list(JOIN GRADRAIL_FIND_DEPENDENCIES "\n" GRADRAIL_FIND_DEPENDENCIES)
  configure_package_config_file(${PROJECT_SOURCE_DIR}/tools/cmake/gradrailConfig.cmake.in
                                ${PROJECT_BINARY_DIR}/gradrailConfig.cmake INSTALL_DESTINATION ${GRADRAIL_INSTALL_CMAKE})
  write_basic_package_version_file(${PROJECT_BINARY_DIR}/gradrailConfigVersion.cmake COMPATIBILITY SameMinorVersion)
  install(FILES ${PROJECT_BINARY_DIR}/gradrailConfig.cmake ${PROJECT_BINARY_DIR}/gradrailConfigVersion.cmake
          DESTINATION ${GRADRAIL_INSTALL_CMAKE})

  # Ours are static, and static libraries are searched once and in order: those that use come before those that are used.
  set(GRADRAIL_LIBS "")
  foreach(library IN LISTS libraries)
    list(PREPEND GRADRAIL_LIBS -l${library})
  endforeach()
  list(APPEND GRADRAIL_LIBS ${GRADRAIL_flags})
  list(JOIN GRADRAIL_LIBS " " GRADRAIL_LIBS)
  list(JOIN GRADRAIL_modules ", " GRADRAIL_REQUIRES)
  file(RELATIVE_PATH GRADRAIL_PC_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
  string(REGEX REPLACE "/$" "" GRADRAIL_PC_PREFIX "${GRADRAIL_PC_PREFIX}")
  configure_file(${PROJECT_SOURCE_DIR}/tools/cmake/gradrail.pc.in ${PROJECT_BINARY_DIR}/gradrail.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/gradrail.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endfunction()

# The libraries that users link; what bench or the tests share among themselves stays in the build tree.
function(gradrail_public_libraries result)
  get_property(libraries GLOBAL PROPERTY GRADRAIL_LIBRARIES)
  set(public "")
  foreach(library IN LISTS libraries)
    get_target_property(folder ${library} SOURCE_DIR)
    if(NOT folder MATCHES "^${PROJECT_SOURCE_DIR}/(bench|tests|tools)(/|$)")
      list(APPEND public ${library})
    endif()
  endforeach()
  set(${result} ${public} PARENT_SCOPE)
endfunction()

gradrail_public_libraries(gradrail_libraries)
gradrail_collect_third_parties("${gradrail_libraries}")
gradrail_install_libraries("${gradrail_libraries}")
gradrail_install_descriptions("${gradrail_libraries}")
if(TARGET gradrail)
  install(TARGETS gradrail RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
if(EXISTS ${PROJECT_SOURCE_DIR}/worker/data/mnist)
  install(DIRECTORY worker/data/mnist DESTINATION ${CMAKE_INSTALL_DATADIR}/gradrail)
endif()
install(DIRECTORY tools/launch DESTINATION ${CMAKE_INSTALL_DATADIR}/gradrail) # examples: scripts, a unit, manifests
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

if(GRADRAIL_TESTS)
  include(${PROJECT_SOURCE_DIR}/tests/system/install_test.cmake)
endif()
