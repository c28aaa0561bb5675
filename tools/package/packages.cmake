# The Debian packages. CPack makes one of each component:
#   program      gradrail          the program, MNIST, layer lists, manual pages, documents
#   library      libgradrail1      the client library
#   plugins      gradrail-plugins  the transports with large libraries
#   development  libgradrail-dev   headers, and the descriptions of the library for CMake and pkg-config
set(GRADRAIL_PACKAGE_MAINTAINER "" CACHE STRING
    "Maintainer of the Debian packages: NAME <ADDRESS>; without one, the author of the commit")
set(maintainer "${GRADRAIL_PACKAGE_MAINTAINER}")
if(maintainer STREQUAL "")
  # The second line of the file states the author, as the first line states the commit (base/CMakeLists.txt).
  file(STRINGS base/commit maintainer REGEX "<")
  if(maintainer MATCHES "^.Format:")
    set(maintainer "")
    execute_process(COMMAND git log -1 "--format=%aN <%aE>" WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
                    OUTPUT_VARIABLE maintainer OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
endif()
set(package_files ${PROJECT_BINARY_DIR}/package)
get_target_property(library_soversion gradrail_shared SOVERSION)
set(library_package libgradrail${library_soversion})

# The date of the release is that of CHANGELOG.md. A version without a date is not released, and has the present date.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/CHANGELOG.md)
file(STRINGS CHANGELOG.md release REGEX "^## ${PROJECT_VERSION} \\([0-9-]+\\)$")
string(REGEX MATCH "[0-9]+-[0-9]+-[0-9]+" release "${release}")
execute_process(COMMAND date --utc --rfc-email "--date=${release}" OUTPUT_VARIABLE GRADRAIL_RELEASE_DATE
                OUTPUT_STRIP_TRAILING_WHITESPACE)
configure_file(tools/package/changelog.in ${package_files}/changelog @ONLY)
foreach(pair program:gradrail library:${library_package} plugins:gradrail-plugins development:libgradrail-dev)
  string(REPLACE ":" ";" pair ${pair})
  list(GET pair 0 component)
  list(GET pair 1 package)
  string(TOUPPER ${component} upper)
  set(CPACK_DEBIAN_${upper}_PACKAGE_NAME ${package})
  install(FILES tools/package/copyright ${package_files}/changelog DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${package}
          COMPONENT ${component} EXCLUDE_FROM_ALL)
endforeach()
install(FILES README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/gradrail
        COMPONENT program EXCLUDE_FROM_ALL)
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/gradrail COMPONENT program EXCLUDE_FROM_ALL)
install(FILES worker/examples/logistic.c DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/libgradrail-dev/examples
        COMPONENT development EXCLUDE_FROM_ALL)
install(DIRECTORY worker/examples/plugin/ DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/libgradrail-dev/examples/plugin
        COMPONENT development EXCLUDE_FROM_ALL FILES_MATCHING PATTERN "*.[ch]" PATTERN "*.md")

set(CPACK_GENERATOR DEB)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_ALL program library development)
get_property(plugins GLOBAL PROPERTY GRADRAIL_PLUGINS)
if(plugins)
  list(APPEND CPACK_COMPONENTS_ALL plugins)
endif()
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ
                                                WORLD_EXECUTE)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_MAINTAINER "${maintainer}")
set(CPACK_DEBIAN_PACKAGE_SOURCE gradrail)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
# The script computes the dependencies as well. CPack ignores libraries that belong to no package, and adds scripts with
# ldconfig where Debian has a trigger.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS OFF)
set(CPACK_PRE_BUILD_SCRIPTS ${CMAKE_CURRENT_LIST_DIR}/finish_packages.cmake)
set(CPACK_GRADRAIL_LIBDIR ${CMAKE_INSTALL_LIBDIR}) # needed by the script, as the next one
set(CPACK_GRADRAIL_SCRATCH ${package_files}/shlibdeps)

set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "") # the first line of each description
set(CPACK_DEBIAN_PROGRAM_DESCRIPTION "gradient exchange with a sharded parameter server
gradrail exchanges gradients between training workers and a sharded parameter
server, through shared memory, RDMA or TCP. This package contains the program,
the MNIST data for a first run, the manual pages and the documents.")
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SUGGESTS
    "gradrail-plugins (= ${PROJECT_VERSION}), python3, python3-numpy, python3-matplotlib") # gradrail-report; gradrail.checkpoint; pictures

set(CPACK_DEBIAN_LIBRARY_DESCRIPTION "client library of gradrail
gradrail exchanges gradients between training workers and a sharded parameter
server. This package contains the library for workers.")
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SUGGESTS "gradrail-plugins (= ${PROJECT_VERSION})")
# Versions before 1.0 may change the binary interface: a program needs the version with which it was built.
file(WRITE ${package_files}/shlibs "libgradrail ${library_soversion} ${library_package} (= ${PROJECT_VERSION})\n")
file(WRITE ${package_files}/triggers "activate-noawait ldconfig\n")
set(CPACK_DEBIAN_LIBRARY_PACKAGE_CONTROL_EXTRA "${package_files}/shlibs;${package_files}/triggers")

set(CPACK_DEBIAN_PLUGINS_DESCRIPTION "RDMA transports of gradrail
gradrail exchanges gradients between training workers and a sharded parameter
server. This package contains the transports over UCX and libfabric, for the
program and for the client library.")
set(CPACK_DEBIAN_PLUGINS_PACKAGE_SECTION libs)
# A plug-in and the program have the same version of the internal interface.
set(CPACK_DEBIAN_PLUGINS_PACKAGE_DEPENDS
    "gradrail (= ${PROJECT_VERSION}) | ${library_package} (= ${PROJECT_VERSION})")

set(CPACK_DEBIAN_DEVELOPMENT_DESCRIPTION "client library of gradrail, files for development
gradrail exchanges gradients between training workers and a sharded parameter
server. This package contains the headers for C and C++, the header for
transport plug-ins, and examples.")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
# The C++ header returns absl::Status.
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "${library_package} (= ${PROJECT_VERSION}), libabsl-dev")
include(CPack)
