"""Questions about the wire that a broker is asked, and whose answers a real Pulsar's are compared with.

``place`` is where they are asked; the other modules ask. Run as a program with a service URL and an HTTP URL, the
package prints a broker's answers as JSON, the form of ``tests/integration/pulsar_4_2_4_answers.json``.
"""
