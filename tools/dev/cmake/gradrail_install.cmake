# `cmake --install` installs the program, libgradrail.so, the headers of include/gradrail, and the MNIST data. It also installs a description of the library for CMake and for pkg-config. The CMakeLists.txt of a
# transport plug-in installs the plug-in. A component is a Debian package (tools/package).
include(CMakePackageConfigHelpers)

set(GRADRAIL_INSTALL_CMAKE ${CMAKE_INSTALL_LIBDIR}/cmake/gradrail)

install(DIRECTORY include/gradrail DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development)

install(TARGETS gradrail_shared EXPORT gradrail_targets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library NAMELINK_COMPONENT development)
install(EXPORT gradrail_targets NAMESPACE gradrail:: FILE gradrailTargets.cmake DESTINATION ${GRADRAIL_INSTALL_CMAKE}
        COMPONENT development)
configure_package_config_file(tools/dev/cmake/gradrailConfig.cmake.in ${PROJECT_BINARY_DIR}/gradrailConfig.cmake
                              INSTALL_DESTINATION ${GRADRAIL_INSTALL_CMAKE})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/gradrailConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/gradrailConfig.cmake ${PROJECT_BINARY_DIR}/gradrailConfigVersion.cmake
        DESTINATION ${GRADRAIL_INSTALL_CMAKE} COMPONENT development)

# pkg-config derives the prefix from the location of its file, so that the installed tree can be moved.
file(RELATIVE_PATH GRADRAIL_PC_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" GRADRAIL_PC_PREFIX "${GRADRAIL_PC_PREFIX}")
configure_file(tools/dev/cmake/gradrail.pc.in ${PROJECT_BINARY_DIR}/gradrail.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/gradrail.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)

if(TARGET gradrail)
  install(TARGETS gradrail RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program)
  install(FILES tools/gradrail/completion.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME gradrail
          COMPONENT program)
  find_program(GRADRAIL_HELP2MAN help2man)
  mark_as_advanced(GRADRAIL_HELP2MAN)
  if(GRADRAIL_HELP2MAN)
    install(CODE "execute_process(COMMAND ${PROJECT_SOURCE_DIR}/tools/package/man_pages $<TARGET_FILE:gradrail>
                                          \$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_MANDIR}/man1
                                  COMMAND_ERROR_IS_FATAL ANY)" COMPONENT program)
  endif()
endif()
# Python finds the modules of gradrail-report beside the target of the link.
install(DIRECTORY tools/report DESTINATION ${CMAKE_INSTALL_DATADIR}/gradrail COMPONENT program USE_SOURCE_PERMISSIONS
        PATTERN __pycache__ EXCLUDE)
file(RELATIVE_PATH report_program /${CMAKE_INSTALL_BINDIR} /${CMAKE_INSTALL_DATADIR}/gradrail/report/gradrail-report)
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/installed)
file(CREATE_LINK ${report_program} ${PROJECT_BINARY_DIR}/installed/gradrail-report SYMBOLIC)
install(FILES ${PROJECT_BINARY_DIR}/installed/gradrail-report DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program)
# python3 -m gradrail.checkpoint needs no other module of the Python package, and not the library.
foreach(module checkpoint errors _arrays _crc32c)
  install(FILES worker/python/gradrail/${module}.py DESTINATION ${CMAKE_INSTALL_DATADIR}/gradrail/python/gradrail
          COMPONENT program)
endforeach()
if(EXISTS ${PROJECT_SOURCE_DIR}/worker/data/mnist)
  install(DIRECTORY worker/data/mnist DESTINATION ${CMAKE_INSTALL_DATADIR}/gradrail COMPONENT program)
endif()
# Examples: scripts, a unit, manifests.
install(DIRECTORY launch/scripts/ DESTINATION ${CMAKE_INSTALL_DATADIR}/gradrail/launch COMPONENT program
        USE_SOURCE_PERMISSIONS)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT license) # packages have a file `copyright`

if(GRADRAIL_WHEEL)
  gradrail_install_wheel()
else()
  include(${PROJECT_SOURCE_DIR}/tools/package/packages.cmake)
endif()
if(GRADRAIL_TESTS)
  include(${PROJECT_SOURCE_DIR}/tests/system/install_test.cmake)
endif()
