# CPack reads this file after it has installed the files of the packages, and before it writes the packages. The folder
# of a component is CPACK_TEMPORARY_DIRECTORY/<component>.
if(CPACK_DEBIAN_PACKAGE_MAINTAINER STREQUAL "")
  message(FATAL_ERROR "The packages have no maintainer: the sources state no author, because they came without git and "
                      "are no archive of 'make dist'. Configure with -DGRADRAIL_PACKAGE_MAINTAINER='NAME <ADDRESS>'.")
endif()
find_program(GZIP gzip REQUIRED)
find_program(DPKG_SHLIBDEPS dpkg-shlibdeps REQUIRED)

# dpkg-shlibdeps reads debian/control of the current folder. Only its existence counts.
file(MAKE_DIRECTORY ${CPACK_GRADRAIL_SCRATCH}/debian)
file(TOUCH ${CPACK_GRADRAIL_SCRATCH}/debian/control)

foreach(component IN LISTS CPACK_COMPONENTS_ALL)
  set(prefix ${CPACK_TEMPORARY_DIRECTORY}/${component}/usr)

  # Debian compresses manual pages and changelogs, without the time and the name of the file.
  file(GLOB texts ${prefix}/share/man/man*/*.[1-8] ${prefix}/share/doc/*/changelog)
  if(texts)
    execute_process(COMMAND ${GZIP} -9 --no-name --force ${texts} COMMAND_ERROR_IS_FATAL ANY)
  endif()

  file(GLOB candidates ${prefix}/bin/* ${prefix}/${CPACK_GRADRAIL_LIBDIR}/*.so.* ${prefix}/${CPACK_GRADRAIL_LIBDIR}/gradrail/*.so)
  set(objects)
  foreach(candidate IN LISTS candidates)
    if(NOT IS_SYMLINK ${candidate})
      list(APPEND objects ${candidate})
    endif()
  endforeach()
  if(objects)
    execute_process(COMMAND ${DPKG_SHLIBDEPS} -O ${objects} WORKING_DIRECTORY ${CPACK_GRADRAIL_SCRATCH} RESULT_VARIABLE result
                    OUTPUT_VARIABLE needed ERROR_VARIABLE reason OUTPUT_STRIP_TRAILING_WHITESPACE)
    if(NOT result EQUAL 0)
      message(FATAL_ERROR "dpkg-shlibdeps finds no package for a library of the component ${component}: ${reason}")
    endif()
    string(REGEX REPLACE "^shlibs:Depends=" "" needed "${needed}")
    string(TOUPPER ${component} upper)
    if(CPACK_DEBIAN_${upper}_PACKAGE_DEPENDS)
      string(PREPEND needed "${CPACK_DEBIAN_${upper}_PACKAGE_DEPENDS}, ")
    endif()
    set(CPACK_DEBIAN_${upper}_PACKAGE_DEPENDS "${needed}")
  endif()
endforeach()
