"""The client over the Qumbed strand: what is sealed at one end is opened at the other.

It knows no other strand; what they share lies above it. It is imported when it is used: boxes
take a library that programs on other strands need not load.
"""
