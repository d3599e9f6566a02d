"""The use cases that several edges offer: each has one function here, which checks everything before it acts.

The binary protocol, HTTP and manifests parse what they are sent, call a function of this package, or the core itself
where one call of it is all there is to do, and answer in their own way.
"""
