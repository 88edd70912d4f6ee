// Makes a component of a JavaScript policy: <source> <wit folder> <world> <output>.
import { writeFile } from 'node:fs/promises';
import { componentize } from '@bytecodealliance/componentize-js';

const [sourcePath, witPath, worldName, output] = process.argv.slice(1);
// A policy imports nothing: no clock, no chance, no network.
const disableFeatures = ['random', 'stdio', 'clocks', 'http', 'fetch-event'];
const { component } = await componentize({ sourcePath, witPath, worldName, disableFeatures });
await writeFile(output, component);
