# GRADRAIL_WHEEL: the objects of the Python wheel (pyproject.toml). Other packages of the same process bring their own
# versions of the same libraries. The objects contain fmt, hidden. tools/dev/build_wheel bundles the other
# libraries and renames their symbols. Debian's archives of Abseil, protobuf and re2 are not position-independent.
# Static gRPC and OpenSSL would be in the wheel four times.
set(GRADRAIL_FMT fmt::fmt-header-only)

# The package is the prefix of an installation: the program and the library find plug-ins and MNIST relative to their
# own files. A wheel has no symbolic links.
function(gradrail_install_wheel)
  get_target_property(soversion gradrail_shared SOVERSION)
  set_target_properties(gradrail_shared PROPERTIES VERSION ${soversion}) # else the wheel holds the library twice
  install(TARGETS gradrail_shared LIBRARY DESTINATION gradrail/lib NAMELINK_SKIP COMPONENT wheel)
  get_property(plugins GLOBAL PROPERTY GRADRAIL_PLUGINS)
  foreach(plugin IN LISTS plugins)
    install(TARGETS ${plugin} LIBRARY DESTINATION gradrail/lib/gradrail COMPONENT wheel)
  endforeach()
  install(TARGETS gradrail RUNTIME DESTINATION gradrail/bin COMPONENT wheel)
  install(DIRECTORY worker/data/mnist DESTINATION gradrail/share/gradrail COMPONENT wheel)
  install(DIRECTORY ${PROJECT_BINARY_DIR}/bench/layers DESTINATION gradrail/share/gradrail COMPONENT wheel)
  install(DIRECTORY tools/report DESTINATION gradrail/share/gradrail COMPONENT wheel PATTERN __pycache__ EXCLUDE)
  install(FILES worker/python/gradrail_program.py DESTINATION . COMPONENT wheel)
endfunction()
